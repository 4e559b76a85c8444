package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/pgdb"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAWorkerTellsItsHealthAndEndsWithItsContext(t *testing.T) {
	url := pgtest.Database(t)
	*addr, *enqueue = "127.0.0.1:0", 1
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, url, write)
		write.Close()
		done <- err
	}()
	lines := bufio.NewScanner(read)
	next := func() string {
		if !lines.Scan() {
			t.Fatalf("it ended: %v", <-done)
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
	awaitStatus := func(want int) {
		t.Helper()
		relaytest.Eventually(t, time.Minute, fmt.Sprint(address, " is ", want), func() bool {
			res, err := http.Get(address)
			relaytest.Must(err)
			res.Body.Close()
			return res.StatusCode == want
		})
	}
	awaitStatus(http.StatusOK)
	db, err := pgdb.Open(url)
	relaytest.Must(err)
	defer db.Close()
	session, err := db.Conn(t.Context()) // which goes on writing below
	relaytest.Must(err)
	defer session.Close()
	var name string
	relaytest.Must(session.QueryRowContext(t.Context(), `SELECT quote_ident(current_database())`).Scan(&name))
	exec := func(query string) {
		t.Helper()
		if _, err := session.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	exec(`INSERT INTO outbox.task (task_type, payload) VALUES ('MAKE_THUMBNAIL', '{"ImageID": 2}')`)
	if got := next(); got != "thumbnail of image 2" { // another process's task
		t.Errorf("it printed %q", got)
	}
	const disconnect = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
		AND pid <> pg_backend_pid()`
	exec(`ALTER DATABASE ` + name + ` SET default_transaction_read_only = on`) // as a standby is
	exec(disconnect)
	awaitStatus(http.StatusServiceUnavailable)
	exec(`ALTER DATABASE ` + name + ` RESET default_transaction_read_only`)
	exec(disconnect)
	awaitStatus(http.StatusOK)
	stop()
	for lines.Scan() {
		t.Errorf("it also printed %q", lines.Text())
	}
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
}
