package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A task that is canceled while it runs, or waits, is not in the history; its unique key, its place in the order of its
// ordering key and its slot are free.
func TestACanceledTaskLeavesNothingBehind(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for taskType, register := range keyedKinds {
		for _, runs := range []bool{false, true} {
			tests[fmt.Sprint(taskType, " ", runs)] = func(t *testing.T) {
				db := newDatabase(t)
				begun := make(chan struct{}, 1)
				reg := handlers.New()
				register(reg, func(ctx context.Context, task *outbox.Task[payload]) error {
					if task.ID > 1 {
						return nil
					}
					begun <- struct{}{}
					<-ctx.Done()
					return context.Cause(ctx)
				}, handlers.Keep(time.Hour), handlers.MaxRunningTotal(1))
				opts := []outbox.Option{outbox.Unique("k", outbox.UntilDone()), outbox.OrderedBy("o")}
				first, want := append(opts, outbox.After(time.Hour)), outbox.Canceled
				if runs {
					first, want = opts, outbox.CancelRequested
				}
				db.keyed(t, taskType, 1, first...)
				run(t, db, reg, fastPoll)
				if runs {
					<-begun
				} else { // a task that is just being promoted to the head cannot be had
					eventually(t, 10*time.Second, "the task is the head", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`) == 1 })
				}
				if e := db.keyed(t, taskType, 2, opts...); e.Outcome != outbox.Skipped {
					t.Errorf("Enqueue beside it: %v", e)
				}
				if got := db.cancel(t, 1); got != want {
					t.Errorf("Cancel: %v, want %v", got, want)
				}
				db.gone(t)
				if e := db.keyed(t, taskType, 3, opts...); e.Outcome != outbox.Created {
					t.Errorf("Enqueue after it: %v", e)
				}
				db.gone(t)
				if got := db.Text(t, `SELECT string_agg(payload ->> 'N', ' ') FROM outbox.done_task`); got != "3" {
					t.Errorf("the history has %q, want 3", got)
				}
			}
		}
	}
	relaytest.Together(t, tests)
}

// Of a batch that fails in part: one canceled member failed, one succeeded all the same.
func TestCanceledMembersOfABatchThatFailsInPart(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	begun := make(chan struct{}, 5)
	var calls atomic.Int32
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		if calls.Add(1) > 1 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return handlers.BatchError{2: errAlways, 3: errAlways, 5: handlers.RunAgain(0)}
	}, handlers.Keep(time.Hour), handlers.MaxRunningTotal(1), handlers.Backoff(constant(time.Millisecond)))
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, ordering_key) SELECT 'BATCH', n, n FROM generate_series(1, 5) n`)
	run(t, db, reg, fastPoll)
	<-begun
	for _, id := range []int{2, 4} {
		if got := db.cancel(t, id); got != outbox.CancelRequested {
			t.Errorf("Cancel(%d): %v", id, got)
		}
	}
	db.gone(t)
	if got := db.Text(t, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.done_task`); got != "1 3 4 5" {
		t.Errorf("the history has %s, want 1 3 4 5", got)
	}
	if n := db.Int(t, `SELECT sum(tasks) FROM (SELECT kind, tasks FROM outbox.counter UNION ALL SELECT kind, tasks FROM outbox.counter_log) c WHERE kind = 'canceled'`); n != 1 {
		t.Errorf("%d tasks are counted as canceled, want 1", n)
	}
}

// A task that runs again is in the history once, when its last iteration is done.
func TestATaskThatRunsAgainIsKeptOnceItIsDone(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	kept := map[string]func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option){
		"complete": func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, task *outbox.Task[payload]) error {
				return task.Complete(ctx, func(*sql.Tx) error { return f(task) })
			}, opts...)
		},
	}
	for kind, register := range kinds {
		kept[kind] = register
	}
	for kind, register := range kept {
		t.Run(kind, func(t *testing.T) {
			db := newDatabase(t)
			reg, before := handlers.New(), []int{}
			register(reg, "X", func(task *outbox.Task[payload]) error {
				before = append(before, db.Int(t, `SELECT count(*) FROM outbox.done_task`))
				if task.Iterations < 2 {
					return handlers.RunAgainWith(task, 0, payload{N: task.Payload.N + 1})
				}
				return nil
			}, handlers.Keep(time.Hour))
			db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, unique_key) VALUES ('X', 'o', 'k')`)
			eventually(t, 10*time.Second, "it is done", func() bool {
				once(t, db, reg, relay.Config{})
				return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
			})
			got := db.Text(t, `SELECT string_agg(concat_ws(' ', task_id, payload, attempt), ', ') FROM outbox.done_task`)
			if got != `1 {"N": 2} 1` || !slices.Equal(before, []int{0, 0, 0}) {
				t.Errorf("the history has %s, and %v tasks before", got, before)
			}
		})
	}
}
