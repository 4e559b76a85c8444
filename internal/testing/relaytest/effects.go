package relaytest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Payload is that of most tests' tasks.
type Payload struct{ N int }

// The types of most tests' tasks, one for each kind of handler, and of those that schedules enqueue.
var (
	TypeTx     = outbox.NewTaskType[Payload]("TX")
	TypeBatch  = outbox.NewTaskType[Payload]("BATCH")
	TypeLeased = outbox.NewTaskType[Payload]("LEASED")
	TypeFired  = outbox.NewTaskType[Payload]("FIRED")
)

// Effect is what a run of a task leaves when it takes effect.
func Effect(ctx context.Context, tx outbox.Querier, id int64, attempt int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect (task_id, attempt) VALUES ($1, $2)`, id, attempt)
	return err
}

// TxEffect is a Tx handler that leaves one effect.
func TxEffect(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
	return Effect(ctx, tx, task.ID, task.Attempt)
}

// BatchEffect is a Batch handler that leaves one effect for each task.
func BatchEffect(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[Payload]) error {
	for _, task := range tasks {
		if err := Effect(ctx, tx, task.ID, task.Attempt); err != nil {
			return err
		}
	}
	return nil
}

// LeasedEffect is a Leased handler that leaves one effect as it completes.
func LeasedEffect(ctx context.Context, task *outbox.Task[Payload]) error {
	return task.Complete(ctx, func(tx *sql.Tx) error { return Effect(ctx, tx, task.ID, task.Attempt) })
}

// All registers a handler of each kind that leaves one effect.
func All() *handlers.Registry {
	reg := handlers.New()
	Tx(reg, TypeTx, TxEffect)
	handlers.Batch(reg, TypeBatch, 50, BatchEffect)
	handlers.Leased(reg, TypeLeased, LeasedEffect)
	return reg
}

// Leased registers a Leased handler of the type LEASED.
func Leased(h func(ctx context.Context, task *outbox.Task[Payload]) error, opts ...handlers.Option) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, TypeLeased, h, opts...)
	return reg
}

// OnceEach checks that n tasks had one effect each, or more where the attempt says -1: an effect
// that no transaction of the task's covers. Nothing else may be left of them.
func (db *Database) OnceEach(t testing.TB, n int) {
	t.Helper()
	if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); got != n {
		t.Errorf("effects of %d tasks, want %d", got, n)
	}
	if got := db.Int(t, `SELECT count(*) - count(DISTINCT task_id) FROM effect WHERE attempt > 0`); got != 0 {
		t.Errorf("%d effects happened twice", got)
	}
	if got := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); got != 0 {
		t.Errorf("%d dead letters\n%s", got, db.Dump(t))
	}
}

// Constant is a backoff of always the same.
func Constant(d time.Duration) func(int, error) (time.Duration, bool) {
	return func(int, error) (time.Duration, bool) { return d, true }
}

// RetrySoon is an option of handlers.
func RetrySoon() handlers.Option { return handlers.Backoff(Constant(time.Millisecond)) }
