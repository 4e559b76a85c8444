package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/relay"
)

// What is delayed, failed before, or the first of its ordering key runs at once; the transaction
// here is not one of InTx, which would wake the relay by itself.
func TestRunNowStartsATaskBeforeItsTime(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		const insert = `INSERT INTO outbox.task (task_type, run_at, attempt, attempted_at, last_error, ordering_key)
			VALUES ('TX', now() + interval '1 hour', $1, now(), $2, $3) RETURNING task_id`
		delayed, failed, keyed := db.Int(t, insert, 0, nil, nil), db.Int(t, insert, 1, "x", nil), db.Int(t, insert, 0, nil,
			"k")
		run(t, db, all(), relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
		db.becomes(t, 20*time.Second, "scheduled", "the ordered task is its key's first",
			`SELECT state FROM outbox.task WHERE task_id = $1`, keyed)
		eventually(t, 20*time.Second, "the relay sleeps", func() bool {
			return db.Int(t, `SELECT last_value FROM outbox.wake`) > 0
		})
		for _, id := range []int{delayed, failed, keyed} {
			tx := db.begin(t)
			got, err := outbox.RunNow(t.Context(), tx, int64(id))
			if err != nil || got != outbox.RunNowDue {
				t.Fatalf("task %d: %v, %v", id, got, err)
			}
			must(tx.Commit())
			db.becomes(t, 20*time.Second, 1, "the task is done", `SELECT count(*) FROM effect WHERE task_id = $1`, id)
		}
		db.Emptied(t, 10*time.Second)
	})
}
