package relaytest

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// OrderedTypes are those of Ordered.
var OrderedTypes = []string{"ORDERED_TX", "ORDERED_BATCH", "ORDERED_LEASED"}

// OrderedPayload is that of the OrderedTypes: their first Fail attempts fail.
type OrderedPayload struct{ N, Fail int }

// NoteRun is what a run of the OrderedTypes leaves when it takes effect: the task's id and key and
// the attempt.
const NoteRun = `INSERT INTO run (task_id, key, attempt) VALUES ($1, $2, $3)`

// CreateRuns makes the table that Ordered needs.
func (db *Database) CreateRuns(t testing.TB) {
	t.Helper()
	db.Do(t, `CREATE TABLE run (run_id bigint GENERATED ALWAYS AS IDENTITY, task_id bigint, key text, attempt int,
		began timestamptz DEFAULT clock_timestamp())`)
}

// Ordered registers a handler of each kind that notes each run. The options come after four
// attempts that are soon retried.
func Ordered(opts ...handlers.Option) *handlers.Registry {
	reg := handlers.New()
	opts = append([]handlers.Option{RetrySoon(), handlers.MaxAttempts(4)}, opts...)
	one := func(ctx context.Context, tx *sql.Tx, task *outbox.Task[OrderedPayload]) error {
		if task.Attempt <= task.Payload.Fail {
			return errors.New("boom")
		}
		_, err := tx.ExecContext(ctx, NoteRun, task.ID, task.OrderingKey, task.Attempt)
		return err
	}
	for i, kind := range []string{"tx", "batch", "complete"} {
		Register(reg, kind, OrderedTypes[i],
			20, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[OrderedPayload]) error {
				failed := handlers.BatchResult{}
				for _, task := range tasks {
					if err := one(ctx, tx, task); err != nil {
						failed[task.ID] = err
					}
				}
				switch {
				case len(failed) == 0:
					return nil
				case kind != "batch":
					return failed[tasks[0].ID]
				}
				return failed
			}, opts...)
	}
	return reg
}

// InOrder checks that n tasks ran once each, those of each key in the order of their ids.
func (db *Database) InOrder(t testing.TB, n int) {
	t.Helper()
	if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM run`); got != n ||
		db.Int(t, `SELECT count(*) FROM run`) != got {
		t.Errorf("%d tasks ran in %d runs, want %d once each", got, db.Int(t, `SELECT count(*) FROM run`), n)
	}
	if got := db.Int(t, `SELECT count(*) FROM (SELECT task_id, lag(task_id) OVER (PARTITION BY key
		ORDER BY run_id) AS before FROM run) r WHERE before > task_id`); got != 0 {
		t.Errorf("%d runs came after one of a later task of their key", got)
	}
}
