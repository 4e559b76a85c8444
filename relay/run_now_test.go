package relay_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/relay"
)

// What is delayed, failed before, or the first of its ordering key runs at once; the transaction here is not one of InTx, which would wake the relay by itself.
func TestRunNowStartsATaskBeforeItsTime(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		delayed := newDelayed(t, db, "TX")
		failed := newDelayed(t, db, "TX")
		db.Do(t, `UPDATE outbox.task SET attempt = 1, attempted_at = now(), last_error = 'x' WHERE task_id = $1`, failed)
		keyed := newDelayed(t, db, "TX", outbox.OrderedBy("k"))
		run(t, db, all(), relay.Config{ListenDSN: db.URL, PollInterval: time.Minute})
		eventually(t, 20*time.Second, "the ordered task is its key's first", func() bool {
			return db.Text(t, `SELECT state FROM outbox.task WHERE task_id = $1`, keyed) == "scheduled"
		})
		eventually(t, 20*time.Second, "the relay sleeps", func() bool { return db.Int(t, `SELECT last_value FROM outbox.wake`) > 0 })
		for _, id := range []int64{delayed, failed, keyed} {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			found, err := outbox.RunNow(t.Context(), tx, id)
			if err != nil || !found {
				t.Fatalf("task %d: %v, %v", id, found, err)
			}
			began := time.Now()
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "the task is done", func() bool { return db.Int(t, `SELECT count(*) FROM effect WHERE task_id = $1`, id) == 1 })
			t.Logf("done after %v", time.Since(began))
		}
		db.Emptied(t, 10*time.Second)
	})
}

func newDelayed(t *testing.T, db *database, taskType string, opts ...outbox.Option) (id int64) {
	t.Helper()
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		got, err := outbox.Enqueue(context.WithoutCancel(t.Context()), tx, taskType, payload{N: 1}, append(opts, outbox.After(time.Hour))...)
		id = got.TaskID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
