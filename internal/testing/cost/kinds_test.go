package cost_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type payload struct {
	N int `json:"n"`
}

var taskType = outbox.NewTaskType[payload]("COST")

// kind is one thing that is done with tasks.
type kind struct {
	name  string
	tasks int // so many that the start and the end of a relay are hardly seen
	warm  int // so many before, until connections are open and plans are kept
	// prepare returns what is to be measured, for n tasks.
	prepare func(t *testing.T, db *subject, n int) (work func())
	spare   float64 // how much more calls, trips and statements may be than what was measured
}

// With one worker nothing depends on the order of workers, and one statement more for each task or
// batch is seen. How many tasks the groups of many workers have depends on the machine: by a fifth
// or so on one that is ten times slower.
const (
	exact   = 1.05
	grouped = 2
)

var kinds = []kind{
	{"enqueue", 1000, 50, enqueueSingle, exact},
	{"enqueue-1000", 20_000, 2000, enqueueMany, exact},
	{"tx", 2000, 200, drained(1, nothing), exact},
	{"tx+insert", 2000, 200, drained(1, oneInsert), exact},
	{"batch-100", 20_000, 2000, drained(1, batches(100)), exact},
	{"batch-1000", 50_000, 10_000, drained(1, batches(1000)), exact},
	{"leased-1", 2000, 200, drained(1, leased), exact},
	{"leased", 10_000, 2000, drained(100, leased), grouped},
	{"complete-1", 2000, 200, drained(1, completes), exact},
}

func nothing(reg *handlers.Registry) {
	handlers.Tx(reg, taskType, func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil })
}

func oneInsert(reg *handlers.Registry) {
	handlers.Tx(reg, taskType, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effect (task_id) VALUES ($1)`, task.ID)
		return err
	})
}

func leased(reg *handlers.Registry) {
	handlers.Leased(reg, taskType, func(context.Context, *outbox.Task[payload]) error { return nil })
}

func completes(reg *handlers.Registry) {
	handlers.Leased(reg, taskType, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(*sql.Tx) error { return nil })
	})
}

func batches(n int) func(*handlers.Registry) {
	return func(reg *handlers.Registry) {
		handlers.Batch(reg, taskType, n, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return nil })
	}
}

func inTx(t *testing.T, db *subject, f func(tx *sql.Tx) error) {
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		if err = f(tx); err == nil {
			err = tx.Commit()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func enqueueSingle(t *testing.T, db *subject, n int) func() {
	return func() {
		for i := range n {
			inTx(t, db, func(tx *sql.Tx) error {
				_, err := taskType.Enqueue(t.Context(), tx, payload{i})
				return err
			})
		}
	}
}

func enqueueMany(t *testing.T, db *subject, n int) func() {
	const at = 1000
	tasks := make([]outbox.TaskSpec, at)
	return func() {
		for range n / at {
			for i := range tasks {
				tasks[i] = taskType.New(payload{i})
			}
			inTx(t, db, func(tx *sql.Tx) error {
				_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
				return err
			})
		}
	}
}

// drained is a relay that runs tasks that are there.
func drained(workers int, register func(*handlers.Registry)) func(*testing.T, *subject, int) func() {
	return func(t *testing.T, db *subject, n int) func() {
		for _, statement := range []string{
			fmt.Sprintf(`INSERT INTO outbox.task (task_type, payload) SELECT '%s', jsonb_build_object('n', n)
				FROM generate_series(1, %d) n`, taskType.Name(), n),
			`VACUUM ANALYZE`,
		} {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		reg := handlers.New()
		register(reg)
		r, err := relay.New(db.DB, reg, relay.Config{Workers: workers, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			var left int
			if err := db.QueryRowContext(context.Background(), `SELECT count(*) FROM outbox.task`).Scan(&left); err != nil ||
				left != 0 {
				t.Errorf("%d tasks are left, %v", left, err)
			}
		})
		return func() {
			if err := r.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
