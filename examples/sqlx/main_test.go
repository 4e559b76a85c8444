package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestTheOrderAndItsTasksCommitTogether(t *testing.T) {
	url := pgtest.Database(t)
	var out bytes.Buffer
	relaytest.Must(run(t.Context(), url, &out))
	const want = "order 1 is placed\nmail to ada@example.com: your order 1 over 1999 cents\n"
	if got := out.String(); got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
	db, err := sqlx.Open("postgres", url)
	relaytest.Must(err)
	defer db.Close()
	if _, err := db.Exec(`ALTER TABLE shop_order ADD CHECK (cents > 0)`); err != nil {
		t.Fatal(err)
	}
	if _, err := placeOrder(t.Context(), db, order{}); err == nil {
		t.Error("an order that the database refuses was placed")
	}
	var turnover, tasks int64
	const left = `SELECT (SELECT sum(cents) FROM shop_turnover), (SELECT count(*) FROM outbox.task)`
	relaytest.Must(db.QueryRow(left).Scan(&turnover, &tasks))
	if turnover != 1999 || tasks != 0 {
		t.Errorf("the turnover is %d and %d tasks are left, want 1999 and none", turnover, tasks)
	}
}
