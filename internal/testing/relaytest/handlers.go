package relaytest

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strconv"
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

// OrderedTypes are those of Ordered.
var OrderedTypes = []string{"ORDERED_TX", "ORDERED_BATCH", "ORDERED_LEASED"}

// OrderedPayload is that of the OrderedTypes: their first Fail attempts fail.
type OrderedPayload struct{ N, Fail int }

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
		_, err := tx.ExecContext(ctx, `INSERT INTO run (task_id, key, attempt) VALUES ($1, $2, $3)`, task.ID, task.OrderingKey, task.Attempt)
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

// Handle is a handler of any kind. The transaction is the one that removes the tasks; a Leased
// handler has none.
type Handle[P any] func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[P]) error

// Register registers h as a kind of handler: "tx", "batch" of the size, "leased", or "complete",
// which is the function that a Leased handler gives to Complete.
func Register[P any](reg *handlers.Registry, kind, taskType string, size int, h Handle[P], opts ...handlers.Option) {
	of := outbox.NewTaskType[P](taskType)
	switch kind {
	case "tx":
		Tx(reg, of, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error {
			return h(ctx, tx, []*outbox.Task[P]{task})
		}, opts...)
	case "batch":
		handlers.Batch(reg, of, size, h, opts...)
	case "leased":
		handlers.Leased(reg, of, func(ctx context.Context, task *outbox.Task[P]) error {
			return h(ctx, nil, []*outbox.Task[P]{task})
		}, opts...)
	case "complete":
		handlers.Leased(reg, of, func(ctx context.Context, task *outbox.Task[P]) error {
			return task.Complete(ctx, func(tx *sql.Tx) error { return h(ctx, tx, []*outbox.Task[P]{task}) })
		}, opts...)
	default:
		panic("no kind of handler is named " + kind)
	}
}

// Grouped says that OUTBOX_TEST_GROUP has tasks of Tx handlers run in groups of so many: what holds
// without groups holds with them.
var Grouped = os.Getenv("OUTBOX_TEST_GROUP") != ""

// Tx is handlers.Tx.
func Tx[P any](r *handlers.Registry, t outbox.TaskType[P],
	h func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error, opts ...handlers.Option) {
	if Grouped {
		n, err := strconv.Atoi(os.Getenv("OUTBOX_TEST_GROUP"))
		if err != nil {
			panic(err)
		}
		opts = append([]handlers.Option{handlers.GroupCommit(n, 0)}, opts...)
	}
	handlers.Tx(r, t, h, opts...)
}
