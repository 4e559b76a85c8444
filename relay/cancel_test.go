package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// cancel calls outbox.Cancel in a transaction of its own, which is committed.
func (db *database) cancel(t testing.TB, id int) outbox.CancelResult {
	t.Helper()
	var got outbox.CancelResult
	err := outbox.InTx(context.Background(), db.DB, func(tx *sql.Tx) (err error) {
		got, err = outbox.Cancel(context.Background(), tx, int64(id))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// gone waits until neither a task nor a request, a run or a dead letter is left.
func (db *database) gone(t testing.TB) {
	t.Helper()
	eventually(t, 20*time.Second, "nothing is left", func() bool {
		return db.Int(t, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.cancel) + (SELECT count(*) FROM outbox.running)`) == 0
	})
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// ends is how a handler can end whose task was canceled, by the task's payload; a nil one is in a statement.
var ends = []func(ctx context.Context) error{
	func(ctx context.Context) error { return ctx.Err() },
	func(ctx context.Context) error { return handlers.Dead(errAlways) },
	func(ctx context.Context) error { return handlers.Snooze(time.Hour) },
	func(ctx context.Context) error { panic("canceled") },
	func(ctx context.Context) error { return nil },
	nil,
}

// The handlers have written their effect before. Those of Tx and Batch that return nil all the same have done the task.
func TestACanceledRunEndsAndIsNotRetried(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		n := 3 * len(ends)
		var calls atomic.Int32
		causes, begun := make(chan error, 2*n), make(chan struct{}, 2*n)
		wait := func(ctx context.Context, tx outbox.Tx, i int) error {
			calls.Add(1)
			begun <- struct{}{}
			defer func() { causes <- context.Cause(ctx) }()
			if end := ends[i-1]; end != nil || tx == nil {
				<-ctx.Done()
				if end == nil {
					return ctx.Err()
				}
				return end(ctx)
			}
			_, err := tx.ExecContext(ctx, `SELECT pg_sleep(30)`)
			return err
		}
		reg := handlers.New()
		handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			return errors.Join(txEffect(ctx, tx, task), wait(ctx, tx, task.Payload.N))
		}, handlers.MaxAttempts(1))
		handlers.Batch(reg, typeBatch, 1, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			return errors.Join(batchEffect(ctx, tx, tasks), wait(ctx, tx, tasks[0].Payload.N))
		}, handlers.MaxAttempts(1))
		handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
			return wait(ctx, nil, task.Payload.N)
		}, handlers.MaxAttempts(1))
		run(t, db, reg, relay.Config{Workers: n + 5, PollInterval: 100 * time.Millisecond})
		for _, kind := range []string{"TX", "BATCH", "LEASED"} {
			db.Enqueue(t, kind, len(ends))
		}
		for range n {
			<-begun
		}
		for id := 1; id <= n; id++ {
			if got := db.cancel(t, id); got != outbox.CancelRequested {
				t.Errorf("Cancel found %v, want CancelRequested", got)
			}
		}
		for range n {
			if cause := <-causes; !errors.Is(cause, outbox.ErrCanceled) {
				t.Errorf("the context ended by %v, want ErrCanceled", cause)
			}
		}
		db.gone(t)
		if got := db.Text(t, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`); got != "5 11" || calls.Load() != int32(n) {
			t.Errorf("effects of tasks %s in %d calls, want 5 11 in %d", got, calls.Load(), n)
		}
	})
}

func TestACanceledTaskEndsItsBatchAndTheOthersRunAgain(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, some := range []bool{false, true} {
		tests[fmt.Sprint(some)] = func(t *testing.T) {
			onEachDriver(t, func(t *testing.T, db *database) {
				reg := handlers.New()
				begun := make(chan struct{}, 10)
				var calls atomic.Int32
				handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
					if calls.Add(1) > 1 {
						return batchEffect(ctx, tx, tasks)
					}
					begun <- struct{}{}
					<-ctx.Done()
					if !some {
						return errors.Join(batchEffect(context.WithoutCancel(ctx), tx, tasks), ctx.Err())
					}
					bad := handlers.BatchError{}
					for _, task := range tasks {
						if task.ID == 3 || task.ID == 4 {
							bad[task.ID] = errAlways
						} else if err := effect(context.WithoutCancel(ctx), tx, task.ID, task.Attempt); err != nil {
							return err
						}
					}
					return bad
				}, handlers.Backoff(constant(time.Millisecond)))
				db.Enqueue(t, "BATCH", 5)
				run(t, db, reg, fastPoll)
				<-begun
				if got := db.cancel(t, 3); got != outbox.CancelRequested {
					t.Errorf("Cancel found %v, want CancelRequested", got)
				}
				db.gone(t)
				want := "1 1, 2 1, 4 1, 5 1"
				if some {
					want = "1 1, 2 1, 4 2, 5 1"
				}
				if got := db.Text(t, `SELECT string_agg(task_id || ' ' || attempt, ', ' ORDER BY task_id) FROM effect`); got != want {
					t.Errorf("tasks and attempts %s, want %s", got, want)
				}
			})
		}
	}
	relaytest.Together(t, tests)
}

// A handler that does not return is abandoned, and its task is gone all the same.
func TestACanceledHandlerThatDoesNotReturnIsNotRetried(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	release, begun := make(chan struct{}), make(chan struct{}, 5)
	defer close(release)
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-release
		return nil
	})
	run(t, db, reg, fastPoll)
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "LEASED", 1)
	<-begun
	<-begun
	for id := 1; id <= 2; id++ {
		if got := db.cancel(t, id); got != outbox.CancelRequested {
			t.Errorf("Cancel found %v, want CancelRequested", got)
		}
	}
	db.gone(t)
	if n := len(begun); n != 0 {
		t.Errorf("%d further runs", n)
	}
}

// The run fails before it hears of the request; and the request is for a task that waits by the time it is seen.
func TestARequestHoldsForATaskThatWaitsAgain(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	begun, fail := make(chan struct{}, 10), make(chan struct{})
	for _, typ := range []outbox.TaskType[payload]{typeTx, outbox.NewTaskType[payload]("TX2")} {
		handlers.Tx(reg, typ, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			begun <- struct{}{}
			<-fail
			return errAlways
		}, handlers.Backoff(constant(time.Hour)))
	}
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-fail
		return errAlways
	}, handlers.Backoff(constant(time.Hour)))
	run(t, db, reg, relay.Config{Workers: 3, PollInterval: fastPoll.PollInterval})
	for _, name := range []string{"TX", "TX2", "LEASED"} {
		db.Enqueue(t, name, 1)
		<-begun
	}
	for id := 1; id <= 3; id++ {
		if got := db.cancel(t, id); got != outbox.CancelRequested {
			t.Errorf("Cancel found %v, want CancelRequested", got)
		}
	}
	close(fail)
	db.gone(t)
	if n := len(begun); n != 0 {
		t.Errorf("%d further runs", n)
	}
}

// The claim comes first, the canceller second, and the other way round.
func TestCancelAndClaimInBothOrders(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Enqueue(t, "TX", 4)
		claim, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer claim.Rollback()
		// As a relay does it: the row is locked, and gone when this commits.
		if _, err := claim.Exec(`DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task ORDER BY task_id LIMIT 2 FOR UPDATE SKIP LOCKED)`); err != nil {
			t.Fatal(err)
		}
		if got := db.cancel(t, 1); got != outbox.CancelRequested {
			t.Errorf("of a claimed task: %v, want CancelRequested", got)
		}
		canceller, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer canceller.Rollback()
		for id, want := range map[int64]outbox.CancelResult{2: outbox.CancelRequested, 3: outbox.Canceled, 99: outbox.NotFound} {
			if got, err := outbox.Cancel(t.Context(), canceller, id); got != want || err != nil {
				t.Errorf("task %d: %v, %v; want %v", id, got, err, want)
			}
		}
		// The task that is being canceled is not claimed, and what the claim holds is not waited for.
		once(t, db, all(), relay.Config{})
		if got := db.Text(t, `SELECT string_agg(task_id::text, ' ') FROM effect`); got != "4" {
			t.Errorf("done were tasks %s, want 4", got)
		}
		if err := canceller.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := claim.Rollback(); err != nil { // the relay died
			t.Fatal(err)
		}
		// Only the first was canceled by a transaction that committed.
		eventually(t, 20*time.Second, "the first is removed", func() bool {
			once(t, db, leased(leasedEffect), relay.Config{})
			return db.Int(t, `SELECT count(*) FROM outbox.task`) == 2 && db.Int(t, `SELECT count(*) FROM outbox.cancel`) == 0
		})
		once(t, db, all(), relay.Config{})
		if got := db.Text(t, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`); got != "2 3 4" {
			t.Errorf("done were tasks %s, want 2 3 4", got)
		}
	})
}

// The cancellers of a crowd wait for nobody, and each task is canceled or done, never both, whoever comes first.
func TestCancelAgainstARelayAtWork(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	const tasks = 300
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, kind, tasks)
	}
	run(t, db, all(), relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond})
	canceled := map[int]bool{}
	for id := 3 * tasks; id > 0; id -= 3 {
		if db.cancel(t, id) == outbox.Canceled {
			canceled[id] = true
		}
	}
	db.gone(t)
	for id := range canceled {
		if n := db.Int(t, `SELECT count(*) FROM effect WHERE task_id = $1`, id); n != 0 {
			t.Errorf("task %d was canceled and done", id)
		}
	}
	t.Logf("%d tasks were canceled as they waited", len(canceled))
	if n := db.Int(t, `SELECT count(*) - count(DISTINCT task_id) FROM effect`); n != 0 {
		t.Errorf("%d effects too many", n)
	}
}
