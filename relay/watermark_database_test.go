package relay_test

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// I10: a forgotten transaction keeps vacuum from removing what claims leave behind, and claims do
// not read it all the same.
func TestBesideAForgottenTransactionAClaimReadsFewEntries(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const dead, more = 8000, 200
	db := newDatabase(t)
	holdSnapshot(t, db)
	// The entries that a backend's index scans have read in this transaction and, for a while, in
	// those before.
	const entries = `SELECT pg_backend_pid(), pg_stat_get_xact_tuples_returned('outbox.task_lane'::regclass)`
	var mu sync.Mutex
	before, reads := map[int]int{}, []int{}
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'TX' FROM generate_series(1, $1::int)`, dead)
	batches := handlers.New()
	handlers.Batch(batches, typeTx, 1000, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error { return nil })
	once(t, db, batches, relay.Config{})
	reg := handlers.New()
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		var pid, n int
		if err := tx.QueryRowContext(ctx, entries).Scan(&pid, &n); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if last, ok := before[pid]; ok && n >= last {
			reads = append(reads, n-last)
		}
		before[pid] = n
		return nil
	})
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond, Workers: 4})
	for range more {
		db.Enqueue(t, "TX", 1)
	}
	db.Emptied(t, 60*time.Second)
	mu.Lock()
	defer mu.Unlock()
	if len(reads) < more/2 {
		t.Fatalf("%d claims were measured, want %d at least", len(reads), more/2)
	}
	reads = reads[len(reads)/2:] // the first hundred tasks make the watermark
	slices.Sort(reads)
	if reads[len(reads)/2] > 500 {
		t.Errorf("beside %d dead entries a claim reads %d of them (median of %d claims), want at most 500", dead,
			reads[len(reads)/2], len(reads))
	}
}
