package main

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestEachOrderHasOneInvoice(t *testing.T) {
	orders, billing := pgtest.Database(t), pgtest.Database(t)
	// Before the program, which makes the same tables: two that make one at the same time may fail.
	db, err := devdb.Open(t.Context(), billing, billingTables)
	relaytest.Must(err)
	defer db.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- run(ctx, orders, billing, 10*time.Millisecond, io.Discard) }()
	var invoices, orderIDs int
	count := func() int {
		if len(done) > 0 {
			t.Fatalf("the program has ended: %v", <-done)
		}
		const counts = `SELECT count(*), count(DISTINCT order_id) FROM invoice`
		relaytest.Must(db.QueryRow(counts).Scan(&invoices, &orderIDs))
		return invoices
	}
	relaytest.Eventually(t, time.Minute, "50 invoices", func() bool { return count() >= 50 })
	stop()
	if err = <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	for range 2 { // the broker delivers an event twice
		relaytest.Must(bill(t.Context(), db, "/orders", "an event", Order{ID: -1}))
	}
	if count(); orderIDs != invoices {
		t.Errorf("%d invoices of %d orders", invoices, orderIDs)
	}
}
