package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// iterations are what a handler saw: iteration, attempt, payload and last error of each call.
func (s *seenBy) iterations() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, task := range s.tasks {
		out = append(out, fmt.Sprintf("%d/%d n=%d %s", task.Iterations, task.Attempt, task.Payload.N, task.LastError))
	}
	return out
}

// An iteration that fails is retried as itself; the next one begins as attempt 1, with the payload that the handler gave.
func TestATaskThatRunsAgainKeepsItsIDAndCountsIterations(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &seenBy{}
		kinds[kind](reg, "AGAIN", func(task *outbox.Task[payload]) error {
			seen.see(task)
			switch {
			case task.Iterations == 1 && task.Attempt < 3:
				return errors.New("boom")
			case task.Iterations == 0:
				return fmt.Errorf("wrapped: %w", handlers.RunAgain(time.Millisecond))
			case task.Iterations < 3:
				return handlers.RunAgainWith(task, time.Millisecond, payload{N: task.Payload.N + 10})
			}
			return nil
		}, handlers.MaxAttempts(3), handlers.Backoff(constant(time.Millisecond)))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, max_attempts) VALUES ('AGAIN', '{"n": 1}', '{"k": "v"}', 7, 3)`)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		want := []string{"0/1 n=1 ", "1/1 n=1 ", "1/2 n=1 boom", "1/3 n=1 boom", "2/1 n=11 ", "3/1 n=21 "}
		if got := seen.iterations(); !slices.Equal(got, want) {
			t.Errorf("the handler saw %q, want %q", got, want)
		}
		for _, task := range seen.tasks {
			if task.ID != seen.tasks[0].ID || !task.CreatedAt.Equal(seen.tasks[0].CreatedAt) || task.Priority != 7 || task.Headers["k"] != "v" || task.MaxAttempts != 3 {
				t.Errorf("the handler saw %+v after %+v", task, seen.tasks[0])
			}
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
			t.Errorf("a dead letter: %s", db.Dump(t))
		}
		// Each iteration that succeeded left its effects, those that failed none.
		if n := db.Int(t, `SELECT count(*) FROM effect`); kind != "leased" && n != 4 {
			t.Errorf("%d effects of 4 iterations", n)
		}
	})
}

func TestRunAgainWaitsByTheDatabasesClockAndClearsTheLastError(t *testing.T) {
	needs.Long(t)
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		kinds[kind](reg, "AGAIN", func(task *outbox.Task[payload]) error { return handlers.RunAgain(5 * time.Minute) })
		db.Do(t, `INSERT INTO outbox.task (task_type, attempt, last_error, iterations) VALUES ('AGAIN', 4, 'old', 41)`)
		once(t, db, reg, relay.Config{})
		got := db.Text(t, `SELECT state || ' ' || attempt || ' ' || iterations || ' ' || COALESCE(last_error, '-') || ' ' || payload || ' ' ||
			round(extract(epoch FROM run_at - clock_timestamp()) / 60) FROM outbox.task`)
		if want := "scheduled 0 42 - {} 5"; got != want {
			t.Errorf("the task is %q, want %q", got, want)
		}
	})
}

func TestAnIterationThatDiesKeepsItsNumberAndPayload(t *testing.T) {
	needs.Long(t)
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		kinds[kind](reg, "AGAIN", func(task *outbox.Task[payload]) error {
			if task.Iterations < 2 {
				return handlers.RunAgainWith(task, 0, payload{N: 5})
			}
			return errAlways
		}, handlers.MaxAttempts(1))
		db.Enqueue(t, "AGAIN", 1)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		if got, want := db.Text(t, `SELECT iterations || ' ' || attempt || ' ' || payload FROM outbox.dead_task`), `2 1 {"N": 5}`; got != want {
			t.Errorf("the dead letter is %q, want %q", got, want)
		}
	})
}

func TestABadPayloadForTheNextIterationIsAFailedAttempt(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	later := handlers.Backoff(constant(time.Hour)) // one attempt only
	for name, c := range map[string]struct {
		typ    outbox.TaskType[any]
		result func(task *outbox.Task[any]) error
		want   string
	}{
		"no JSON": {outbox.NewTaskType[any]("BAD"), func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](task, 0, math.Inf(1))
		}, "handlers: RunAgainWith: outbox: invalid payload"},
		"too large": {outbox.NewTaskType[any]("BAD"), func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](task, 0, strings.Repeat("x", 300<<10))
		}, "handlers: RunAgainWith: outbox: payload too large"},
		"too large for the type": {outbox.NewTaskType[any]("BAD", outbox.MaxPayload(10)), func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](task, 0, "0123456789")
		}, "handlers: RunAgainWith: outbox: payload too large"},
		"of another task": {outbox.NewTaskType[any]("BAD"), func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](&outbox.Task[any]{ID: task.ID + 1, Type: "BAD"}, 0, 1)
		}, "handlers: RunAgainWith: its payload is for task 2, not for task 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			for kind, register := range map[string]func(reg *handlers.Registry){
				"tx": func(reg *handlers.Registry) {
					handlers.Tx(reg, c.typ, func(_ context.Context, _ *sql.Tx, task *outbox.Task[any]) error { return c.result(task) }, later)
				},
				"batch": func(reg *handlers.Registry) {
					handlers.Batch(reg, c.typ, 3, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[any]) error {
						return handlers.BatchError{tasks[0].ID: c.result(tasks[0])}
					}, later)
				},
				"leased": func(reg *handlers.Registry) {
					handlers.Leased(reg, c.typ, func(_ context.Context, task *outbox.Task[any]) error { return c.result(task) }, later)
				},
				"complete": func(reg *handlers.Registry) {
					handlers.Leased(reg, c.typ, func(ctx context.Context, task *outbox.Task[any]) error {
						return task.Complete(ctx, func(tx *sql.Tx) error { return c.result(task) })
					}, later)
				},
			} {
				reg := handlers.New()
				register(reg)
				db.Do(t, `DELETE FROM outbox.task`)
				db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (1, 'BAD')`)
				once(t, db, reg, relay.Config{})
				got := db.Text(t, `SELECT attempt || ' ' || iterations || ' ' || payload || ' ' || last_error FROM outbox.task`)
				if want := "1 0 {} " + c.want; !strings.HasPrefix(got, want) {
					t.Errorf("%s: the task is %.200q, want %q", kind, got, want)
				}
			}
		})
	}
}

// A batch says of each task what becomes of it: done, again with its own payload, failed. For all at once RunAgain
// is fine, and RunAgainWith is not, as it is for one.
func TestABatchRunsSomeOfItsTasksAgain(t *testing.T) {
	t.Parallel()
	db, typ := newDatabase(t), outbox.NewTaskType[payload]("SOME")
	runBatch := func(result func(tasks []*outbox.Task[payload]) error) {
		reg := handlers.New()
		handlers.Batch(reg, typ, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			if err := batchEffect(ctx, tx, tasks); err != nil {
				return err
			}
			return result(tasks)
		}, handlers.Backoff(constant(time.Hour)))
		db.Do(t, `DELETE FROM outbox.task; DELETE FROM effect`)
		db.Enqueue(t, "SOME", 4)
		once(t, db, reg, relay.Config{Workers: 1})
	}
	state := func() string {
		return db.Text(t, `SELECT string_agg(attempt || ' ' || iterations || ' ' || payload, ', ' ORDER BY task_id) || '; effects ' || (SELECT count(*) FROM effect) FROM outbox.task`)
	}
	runBatch(func(tasks []*outbox.Task[payload]) error {
		return handlers.BatchError{tasks[1].ID: handlers.RunAgainWith(tasks[1], time.Hour, payload{N: 20}),
			tasks[2].ID: handlers.RunAgain(time.Hour), tasks[3].ID: errAlways}
	})
	if got, want := state(), `0 1 {"N": 20}, 0 1 {"n": 3}, 1 0 {"n": 4}; effects 4`; got != want {
		t.Errorf("after a result for each: %s, want %s", got, want)
	}
	runBatch(func(tasks []*outbox.Task[payload]) error { return handlers.RunAgain(time.Hour) })
	if got, want := state(), `0 1 {"n": 1}, 0 1 {"n": 2}, 0 1 {"n": 3}, 0 1 {"n": 4}; effects 4`; got != want {
		t.Errorf("after RunAgain for all: %s, want %s", got, want)
	}
	runBatch(func(tasks []*outbox.Task[payload]) error {
		return handlers.RunAgainWith(tasks[0], time.Hour, payload{N: tasks[0].Payload.N * 10})
	})
	// The batch fails as a whole, and its tasks run one by one.
	if got, want := state(), `0 1 {"N": 10}, 0 1 {"N": 20}, 0 1 {"N": 30}, 0 1 {"N": 40}; effects 4`; got != want {
		t.Errorf("after RunAgainWith for all: %s, want %s", got, want)
	}
}

// Complete runs the task again with the writes of its function, in one transaction.
func TestCompleteThatRunsAgainCommitsEachIterationOnce(t *testing.T) {
	t.Parallel()
	db, reg, seen := newDatabase(t), handlers.New(), &seenBy{}
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		seen.see(task)
		err := task.Complete(ctx, func(tx *sql.Tx) error {
			if err := effect(ctx, tx, task.ID, task.Iterations); err != nil {
				return err
			}
			if task.Iterations < 3 {
				return handlers.RunAgainWith(task, time.Millisecond, payload{N: task.Payload.N + 1})
			}
			return nil
		})
		if err == nil && task.Attempt == 1 {
			return errors.New("too late to matter")
		}
		return err
	})
	db.Enqueue(t, "LEASED", 1)
	r := run(t, db, reg, relay.Config{PollInterval: time.Minute})
	db.Emptied(t, 30*time.Second)
	if got, want := seen.iterations(), []string{"0/1 n=1 ", "1/1 n=2 ", "2/1 n=3 ", "3/1 n=4 "}; !slices.Equal(got, want) {
		t.Errorf("the handler saw %q, want %q", got, want)
	}
	if got, want := db.Text(t, `SELECT string_agg(attempt::text, ' ' ORDER BY at) FROM effect`), "0 1 2 3"; got != want {
		t.Errorf("effects of the iterations %q, want %q", got, want)
	}
	r.Stop()
}

func TestRunAgainAfterCompleteIsLogged(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		if err := task.Complete(ctx, func(tx *sql.Tx) error { return nil }); err != nil {
			return err
		}
		return handlers.RunAgain(time.Minute)
	})
	db.Enqueue(t, "LEASED", 1)
	log := once(t, db, reg, relay.Config{})
	if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 || strings.Count(log, "RunAgain has no effect after Complete") != 1 {
		t.Errorf("%d tasks are left, and the log is\n%s", n, log)
	}
}

// A run of an earlier iteration that fails late, when its connection is long gone, changes nothing of the present one.
func TestALateFailureOfAnEarlierIterationLeavesTheNextOneAlone(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	side := open(t, db.URL)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	late := make(chan struct{})
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		select {
		case <-first:
		default:
			return handlers.RunAgainWith(task, time.Hour, payload{N: 2})
		}
		defer close(late)
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		side.Int(t, `SELECT count(pg_terminate_backend($1))`, pid)
		eventually(t, 20*time.Second, "another run has ended the iteration", func() bool {
			return side.Int(t, `SELECT count(*) FROM outbox.task WHERE iterations = 1`) == 1
		})
		return context.DeadlineExceeded
	})
	db.Enqueue(t, "TX", 1)
	one := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	other := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	<-late
	one.Stop()
	other.Stop()
	if got, want := db.Text(t, `SELECT string_agg(iterations || ' ' || attempt || ' ' || payload, ', ') FROM outbox.task`), `1 0 {"N": 2}`; got != want {
		t.Errorf("the task is %s, want %s", got, want)
	}
}
