package crashes_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

const ratePerSecond = 100

// rated registers handlers of each kind whose tasks note their starts, a hundred a second.
func rated(side *sql.DB) *handlers.Registry {
	note := func(ctx context.Context, taskType string, n int) error {
		_, err := side.ExecContext(ctx, `INSERT INTO start (task_type, at) SELECT $1, $3::timestamptz FROM generate_series(1, $2::int)`, taskType, n, time.Now())
		return err
	}
	reg, rate := handlers.New(), handlers.Rate(ratePerSecond, time.Second)
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, _ *sql.Tx, _ *outbox.Task[relaytest.Payload]) error {
		return note(ctx, "TX", 1)
	}, rate)
	handlers.Batch(reg, relaytest.TypeBatch, 20, func(ctx context.Context, _ outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		return note(ctx, "BATCH", len(tasks))
	}, rate)
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, _ *outbox.Task[relaytest.Payload]) error { return note(ctx, "LEASED", 1) }, rate)
	return reg
}

// A handler begins a little after its task's token was taken, so in a second of noted starts there may be some more.
const ratedWindow = `SELECT max(n) FROM (SELECT count(*) OVER (PARTITION BY task_type ORDER BY at RANGE BETWEEN '1 s' PRECEDING AND CURRENT ROW) AS n
	FROM start WHERE task_type = $1) AS w`

func TestTheRateOfATypeHoldsInAllProcessesAndIsReached(t *testing.T) {
	needs.Timing(t)
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE start (task_type text, at timestamptz)`)
	kinds := []string{"TX", "BATCH", "LEASED"}
	for _, kind := range kinds {
		db.Enqueue(t, kind, 6000)
	}
	for range 3 {
		start(t, db, "rated", 10)
	}
	relaytest.Eventually(t, 30*time.Second, "all processes are there and have begun", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 3 && db.Int(t, `SELECT count(DISTINCT task_type) FROM start`) == 3
	})
	reached := map[string]int{}
	slow := func(kind string) bool { return reached[kind] < ratePerSecond*9/10 }
	for round := 0; round < 6 && slices.ContainsFunc(kinds, slow); round++ { // other load on the machine may spoil one
		began := db.Text(t, `SELECT clock_timestamp()`)
		<-time.After(3 * time.Second)
		for _, kind := range kinds {
			n := db.Int(t, `SELECT count(*) FROM start WHERE task_type = $1 AND at BETWEEN $2::timestamptz AND $2::timestamptz + interval '3 s'`, kind, began)
			reached[kind] = max(reached[kind], n/3)
		}
	}
	for _, kind := range kinds {
		most := db.Int(t, ratedWindow, kind)
		t.Logf("%s: %d/s for 3 s, at most %d in any second", kind, reached[kind], most)
		if slow(kind) {
			t.Errorf("%s: %d tasks started in a second with work waiting, want %d at least", kind, reached[kind], ratePerSecond*9/10)
		}
		if most > ratePerSecond*12/10+2+10 {
			t.Errorf("%s: %d tasks started in one second, want %d at most, and ten that were late", kind, most, ratePerSecond*12/10+2)
		}
	}
	if n := db.Int(t, `SELECT count(DISTINCT task_type) FROM outbox.task WHERE state = 'ready'`); n != 3 {
		t.Errorf("%d types have work left: the test shows nothing", n)
	}
	db.Do(t, `DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task FOR UPDATE SKIP LOCKED)`)
}
