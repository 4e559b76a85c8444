package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestHeadsArePromotedAfterAllTablesWereEmptied(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	db.Do(t, `TRUNCATE outbox.headless_key, outbox.promote_lock`)
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, payload) SELECT 'ORDERED_TX', 'k', '{}'
		FROM generate_series(1, 5)`)
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.InOrder(t, 5)
}

// What cannot be done is logged once, and the rest goes on.
func TestARelayWithoutARightGoesOn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.cancel RENAME TO elsewhere; ALTER TABLE outbox.schedule RENAME TO away;
		INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('T', 'k', 1)`)
	r := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly)}))
	eventually(t, 30*time.Second, "a warning, and a second failure", func() bool {
		return r.Log.Count("PostgreSQL refuses a job of the relay's upkeep") == 1 && r.Log.Count("add the schedule") >= 2
	})
	db.becomes(t, 20*time.Second, 0, "keys are swept", `SELECT count(*) FROM outbox.unique_key`)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 30*time.Second)
	db.Do(t, `ALTER TABLE outbox.away RENAME TO schedule`)
	db.becomes(t, 30*time.Second, 1, "the schedule is registered", `SELECT count(*) FROM outbox.schedule`)
	r.Stop()
	r.Log.Want(t, 1, "PostgreSQL refuses a job of the relay's upkeep")
	r.Log.Want(t, 1, "schedules cannot be fired")
	db.Do(t, `ALTER TABLE outbox.elsewhere RENAME TO cancel`)
}
