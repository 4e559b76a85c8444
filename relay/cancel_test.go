package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// cancel calls outbox.Cancel in a transaction that commits, and checks its answer if one is wanted.
func (db *database) cancel(t testing.TB, id int, want ...outbox.CancelResult) (got outbox.CancelResult) {
	t.Helper()
	db.inTx(t, func(tx *sql.Tx) (err error) {
		got, err = outbox.Cancel(context.Background(), tx, int64(id))
		return err
	})
	if len(want) > 0 && got != want[0] {
		t.Errorf("Cancel of task %d: %v, want %v", id, got, want[0])
	}
	return got
}

// gone waits until neither a task nor a request, a run or a dead letter is left.
func (db *database) gone(t testing.TB) {
	t.Helper()
	db.becomes(t, 20*time.Second, 0, "nothing is left", `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*)
		FROM outbox.cancel) + (SELECT count(*) FROM outbox.running)`)
	db.wantRows(t, 0, `outbox.dead_task`)
}

// The handlers have written their effect before. Those of Tx and Batch that return nil all the same
// have done the task.
func TestACanceledRunEndsAndIsNotRetried(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		release := make(chan struct{})
		defer close(release)
		ends := []func(ctx context.Context) error{ // by the task's payload; a nil one is in a statement
			func(ctx context.Context) error { return ctx.Err() },
			func(ctx context.Context) error { return handlers.Dead(errAlways) },
			func(ctx context.Context) error { return handlers.Snooze(time.Hour) },
			func(ctx context.Context) error { panic("canceled") },
			func(ctx context.Context) error { return nil },
			func(ctx context.Context) error { <-release; return nil }, // it is abandoned
			nil,
		}
		n := 3 * len(ends)
		var calls atomic.Int32
		causes, begun := make(chan error, 2*n), make(chan struct{}, 2*n)
		wait := func(ctx context.Context, tx *sql.Tx, i int) (err error) {
			calls.Add(1)
			begun <- struct{}{}
			end := ends[i-1]
			if end == nil && tx != nil {
				_, err = tx.ExecContext(ctx, `SELECT pg_sleep(30)`)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			if end == nil {
				return errors.Join(err, ctx.Err())
			}
			return end(ctx)
		}
		reg := handlers.New()
		for _, kind := range []string{"tx", "batch", "leased"} {
			relaytest.Register(reg, kind, kind, 1,
				func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) (err error) {
					if tx != nil {
						err = effect(ctx, tx, tasks[0].ID, 1)
					}
					return errors.Join(err, wait(ctx, tx, tasks[0].Payload.N))
				}, handlers.MaxAttempts(1))
		}
		run(t, db, reg, relay.Config{Workers: n + 5, PollInterval: 100 * time.Millisecond})
		for _, kind := range []string{"tx", "batch", "leased"} {
			db.Enqueue(t, kind, len(ends))
		}
		for range n {
			<-begun
		}
		for id := 1; id <= n; id++ {
			db.cancel(t, id, outbox.CancelRequested)
		}
		for range n {
			if cause := <-causes; !errors.Is(cause, outbox.ErrCanceled) {
				t.Errorf("the context ended by %v, want ErrCanceled", cause)
			}
		}
		db.gone(t)
		db.wantText(t, "5 12", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`)
		if calls.Load() != int32(n) {
			t.Errorf("%d calls, want %d", calls.Load(), n)
		}
	})
}

// The others run again.
func TestCanceledTasksEndTheirBatch(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	begun := make(chan struct{}, 5)
	var calls atomic.Int32
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
		if calls.Add(1) > 1 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return errAlways
	}, handlers.Retention(time.Hour), handlers.MaxRunning(1), retrySoon())
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, ordering_key) SELECT 'BATCH', n, n
		FROM generate_series(1, 5) n`)
	run(t, db, reg, fastPoll)
	<-begun
	db.Do(t, `SELECT outbox.cancel_task(2), outbox.cancel_task(4)`)
	db.gone(t)
	db.wantText(t, "1 1, 3 1, 5 1", `SELECT string_agg(task_id || ' ' || attempt, ', ' ORDER BY task_id) FROM outbox.done_task`)
	db.wantText(t, "2", `SELECT sum(tasks) FROM (SELECT kind, tasks FROM outbox.counter UNION ALL
		SELECT kind, tasks FROM outbox.counter_log) c WHERE kind = 'canceled'`)
}
