package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// A relay that finds no work for its token must not keep it from the others.
func TestTokensThatAreNotUsedAreGivenBack(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	registerTx(reg, typeTx, txEffect, handlers.Rate(20, time.Hour)) // two at once
	for i, step := range []struct{ enqueue, done int }{{1, 1}, {3, 2}, {0, 2}} {
		db.Enqueue(t, "TX", step.enqueue)
		once(t, db, reg, relay.Config{})
		if n := db.Int(t, `SELECT count(*) FROM effect`); n != step.done {
			t.Errorf("step %d: %d tasks have run, want %d", i, n, step.done)
		}
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`) // one token's time
	for range 2 {
		once(t, db, reg, relay.Config{})
		db.want(t, 3, "tasks have run after one more token", `SELECT count(*) FROM effect`)
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = clock_timestamp() + interval '1 day'`) // the clock was put back
	once(t, db, reg, relay.Config{})
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`)
	once(t, db, reg, relay.Config{})
	db.want(t, 4, "tasks have run", `SELECT count(*) FROM effect`)
}
