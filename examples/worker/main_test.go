//go:build unix

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAWorkerTellsItsHealthAndEndsWithSIGTERM(t *testing.T) {
	url := pgtest.Database(t)
	binary := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-addr", "127.0.0.1:0", "-enqueue", "1")
	cmd.Env = append(os.Environ(), "OUTBOX_DATABASE_URL="+url)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("it ended: %v", cmd.Wait())
		}
		return lines.Text()
	}
	address, found := strings.CutPrefix(next(), "health at ")
	if !found {
		t.Fatalf("it printed %q first", address)
	}
	if got := next(); got != "thumbnail of image 1" {
		t.Errorf("it printed %q", got)
	}
	status := func() int {
		res, err := http.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	awaitStatus := func(want int) {
		t.Helper()
		relaytest.Eventually(t, time.Minute, fmt.Sprint(address, " is ", want), func() bool { return status() == want })
	}
	awaitStatus(http.StatusOK)
	db, err := pgdb.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	session, err := db.Conn(t.Context()) // which goes on writing below
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	exec := func(query string) {
		t.Helper()
		if _, err := session.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	const disconnect = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`
	exec(`INSERT INTO outbox.task (task_type, payload) VALUES ('MAKE_THUMBNAIL', '{"ImageID": 2}')`)
	if got := next(); got != "thumbnail of image 2" { // another process's task
		t.Errorf("it printed %q", got)
	}
	var name string
	if err := session.QueryRowContext(t.Context(), `SELECT quote_ident(current_database())`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	exec(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`) // as a standby is
	exec(disconnect)
	awaitStatus(http.StatusServiceUnavailable)
	exec(`ALTER DATABASE ` + name + ` RESET default_transaction_read_only`)
	exec(disconnect)
	awaitStatus(http.StatusOK)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Errorf("it also printed %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
