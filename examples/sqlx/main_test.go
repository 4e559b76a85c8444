package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestTheOrderAndItsTasksCommitTogether(t *testing.T) {
	url := pgtest.Database(t)
	var out bytes.Buffer
	if err := run(t.Context(), url, &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "order 1 is placed\nmail to ada@example.com: your order 1 over 1999 cents\n"; got != want {
		t.Errorf("it printed %q, want %q", got, want)
	}
	db, err := sqlx.Open("postgres", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`ALTER TABLE shop_order ADD CHECK (cents > 0)`); err != nil {
		t.Fatal(err)
	}
	if _, err := placeOrder(t.Context(), db, order{}); err == nil {
		t.Error("an order that the database refuses was placed")
	}
	var turnover, tasks int64
	if err := db.QueryRow(`SELECT (SELECT sum(cents) FROM shop_turnover), (SELECT count(*) FROM outbox.task)`).Scan(&turnover, &tasks); err != nil {
		t.Fatal(err)
	}
	if turnover != 1999 || tasks != 0 {
		t.Errorf("the turnover is %d and %d tasks are left, want 1999 and none", turnover, tasks)
	}
}
