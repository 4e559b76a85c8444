package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/examples/internal/webtest"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAWorkerTellsItsHealthAndEndsWithItsContext(t *testing.T) {
	*addr, *enqueue = "127.0.0.1:0", 1
	p := webtest.Start(t, run)
	p.DB.SetMaxOpenConns(1) // a session that goes on writing below
	address, found := strings.CutPrefix(p.Line(), "health at ")
	if !found {
		t.Fatalf("it printed %q first", address)
	}
	if got := p.Line(); got != "thumbnail of image 1" {
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
	name := p.DB.Text(t, `SELECT quote_ident(current_database())`)
	p.DB.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('MAKE_THUMBNAIL', '{"ImageID": 2}')`)
	if got := p.Line(); got != "thumbnail of image 2" { // another process's task
		t.Errorf("it printed %q", got)
	}
	const disconnect = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
		AND pid <> pg_backend_pid()`
	p.DB.Do(t, `ALTER DATABASE `+name+` SET default_transaction_read_only = on`) // as a standby is
	p.DB.Do(t, disconnect)
	awaitStatus(http.StatusServiceUnavailable)
	p.DB.Do(t, `ALTER DATABASE `+name+` RESET default_transaction_read_only`)
	p.DB.Do(t, disconnect)
	awaitStatus(http.StatusOK)
	if lines := p.Stop(); len(lines) > 0 {
		t.Errorf("it also printed %q", lines)
	}
}
