package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/enqueuetest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
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
	pool, err := devdb.Open(t.Context(), url, "")
	relaytest.Must(err)
	defer pool.Close()
	db := bun.NewDB(pool, pgdialect.New())
	errNo := errors.New("no")
	err = db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := sendReceipt.Enqueue(ctx, tx.Tx, receipt{}); err != nil {
			t.Error(err)
		}
		return errNo
	})
	if !errors.Is(err, errNo) {
		t.Errorf("RunInTx: %v", err)
	}
	tx, err := pool.BeginTx(t.Context(), nil)
	relaytest.Must(err)
	if _, err := addTurnover.Enqueue(t.Context(), tx, receipt{OrderID: 1}); err != nil {
		t.Fatal(err)
	}
	if got := outboxtest.Drain(t, tx, registry(db, &out)); len(got.Runs) != 1 || got.Runs[0].Outcome != relay.OutcomeDone {
		t.Errorf("ADD_TURNOVER on the test's transaction: %v", got.Runs)
	}
	relaytest.Must(tx.Rollback())
	var turnover, tasks int64
	const left = `SELECT (SELECT sum(cents) FROM shop_turnover), (SELECT count(*) FROM outbox.task)`
	relaytest.Must(pool.QueryRow(left).Scan(&turnover, &tasks))
	if turnover != 1999 || tasks != 0 {
		t.Errorf("the turnover is %d and %d tasks are left, want 1999 and none", turnover, tasks)
	}
}

func TestBunsTransactionsEnqueueTheRowsOfASqlTx(t *testing.T) {
	url := relaytest.Migrated(t)
	db := bun.NewDB(relaytest.Open(t, url, "pgx").DB, pgdialect.New())
	enqueuetest.Run(t, url, enqueuetest.Client{Name: "bun", Begin: func(ctx context.Context) (enqueuetest.Tx, error) {
		tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
		return enqueuetest.Tx{Querier: tx.Tx, Commit: tx.Commit, Rollback: tx.Rollback}, err
	}})
}
