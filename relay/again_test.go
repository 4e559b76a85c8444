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
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// An iteration that fails is retried as itself; the next one begins as attempt 1, with the payload
// that the handler gave. The history has the task once, when its last iteration is done.
func TestATaskThatRunsAgainKeepsItsIDAndCountsIterations(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &seenBy{}
		kinds[kind](reg, "AGAIN", func(task *outbox.Task[payload]) error {
			seen.see(task)
			db.wantRows(t, 0, `outbox.done_task`)
			switch {
			case task.Iterations == 1 && task.Attempt < 3:
				return errors.New("boom")
			case task.Iterations == 0:
				return fmt.Errorf("wrapped: %w", handlers.RunAgain(time.Millisecond))
			case task.Iterations < 3:
				return handlers.RunAgainWith(task, time.Millisecond, payload{N: task.Payload.N + 10})
			}
			return nil
		}, handlers.MaxAttempts(3), handlers.Backoff(constant(time.Millisecond)), handlers.Retention(time.Hour))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, max_attempts, ordering_key, unique_key)
			VALUES ('AGAIN', '{"n": 1}', '{"k": "v"}', 7, 3, 'o', 'k')`)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		want := []string{"0/1 n=1 ", "1/1 n=1 ", "1/2 n=1 boom", "1/3 n=1 boom", "2/1 n=11 ", "3/1 n=21 "}
		got := seen.say(func(task outbox.Task[payload]) string {
			return fmt.Sprintf("%d/%d n=%d %s", task.Iterations, task.Attempt, task.Payload.N, task.LastError)
		})
		if !slices.Equal(got, want) {
			t.Errorf("the handler saw %q, want %q", got, want)
		}
		for _, task := range seen.tasks {
			if task.ID != seen.tasks[0].ID || !task.CreatedAt.Equal(seen.tasks[0].CreatedAt) || task.Priority != 7 ||
				task.Headers["k"] != "v" || task.MaxAttempts != 3 {
				t.Errorf("the handler saw %+v after %+v", task, seen.tasks[0])
			}
		}
		db.wantText(t, `1 {"N": 21} 1`, `SELECT string_agg(concat_ws(' ', task_id, payload, attempt), ', ')
			FROM outbox.done_task`)
		if kind != "leased" { // each iteration that succeeded left its effect
			db.wantRows(t, 4, `effect`)
		}
	})
}

func TestABadPayloadForTheNextIterationIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	db, reg, wants := newDatabase(t), handlers.New(), map[string]string{}
	for name, c := range map[string]struct {
		result func(*outbox.Task[any]) error
		want   string
	}{
		"no JSON": {func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](task, 0, math.Inf(1))
		}, "outbox: invalid payload"},
		"of another task": {func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](&outbox.Task[any]{ID: task.ID + 1000, Type: task.Type}, 0, 1)
		}, "its payload is for task 10"},
	} {
		for _, kind := range []string{"tx", "batch", "complete"} {
			taskType := kind + " " + name
			relaytest.Register(reg, kind, taskType, 3, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[any]) error {
				if kind == "batch" {
					return handlers.BatchResult{tasks[0].ID: c.result(tasks[0])}
				}
				return c.result(tasks[0])
			}, handlers.Backoff(constant(time.Hour)))
			db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, taskType)
			wants[taskType] = "1 0 {} handlers: RunAgainWith: " + c.want
		}
	}
	once(t, db, reg, relay.Config{})
	for name, want := range wants {
		got := db.Text(t, `SELECT attempt || ' ' || iterations || ' ' || payload || ' ' || last_error FROM outbox.task
			WHERE task_type = $1`, name)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: the task is %.200q, want %q", name, got, want)
		}
	}
}

// A batch says of each task what becomes of it: done, again with its own payload, failed. For all
// at once RunAgain is fine. RunAgainWith is not: the batch fails as a whole, and its tasks run one
// by one.
func TestABatchRunsSomeOfItsTasksAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for name, c := range map[string]struct {
		result func(tasks []*outbox.Task[payload]) error
		want   string // attempt, iterations and payload of each that is left
	}{
		"a result for each": {func(tasks []*outbox.Task[payload]) error {
			return handlers.BatchResult{tasks[1].ID: handlers.RunAgainWith(tasks[1], time.Hour, payload{N: 20}),
				tasks[2].ID: handlers.RunAgain(time.Hour), tasks[3].ID: errAlways}
		}, `0 1 {"N": 20}, 0 1 {"n": 3}, 1 0 {"n": 4}`},
		"RunAgain for all": {func([]*outbox.Task[payload]) error { return handlers.RunAgain(time.Hour) },
			`0 1 {"n": 1}, 0 1 {"n": 2}, 0 1 {"n": 3}, 0 1 {"n": 4}`},
		"RunAgainWith for all": {func(tasks []*outbox.Task[payload]) error {
			return handlers.RunAgainWith(tasks[0], time.Hour, payload{N: tasks[0].Payload.N * 10})
		}, `0 1 {"N": 10}, 0 1 {"N": 20}, 0 1 {"N": 30}, 0 1 {"N": 40}`},
	} {
		t.Run(name, func(t *testing.T) {
			reg := handlers.New()
			handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				if err := batchEffect(ctx, tx, tasks); err != nil {
					return err
				}
				return c.result(tasks)
			}, handlers.Backoff(constant(time.Hour)))
			db.Do(t, `DELETE FROM outbox.task; DELETE FROM effect`)
			db.Enqueue(t, "BATCH", 4)
			once(t, db, reg, relay.Config{Workers: 1})
			db.wantText(t, c.want, `SELECT string_agg(attempt || ' ' || iterations || ' ' || payload, ', ' ORDER BY task_id)
				FROM outbox.task`)
			db.wantRows(t, 4, `effect`)
		})
	}
}

// A run of an earlier iteration that fails late, when its connection is long gone, changes nothing
// of the present one.
func TestALateFailureOfAnEarlierIterationLeavesTheNextOneAlone(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	side := open(t, db.URL)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	late := make(chan struct{})
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		select {
		case <-first:
		default:
			return handlers.RunAgain(time.Hour) // with the same payload, so only the iteration tells them apart
		}
		defer close(late)
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		side.Int(t, `SELECT count(pg_terminate_backend($1))`, pid)
		side.becomes(t, 20*time.Second, 1, "another run has ended the iteration",
			`SELECT count(*) FROM outbox.task WHERE iterations = 1`)
		return context.DeadlineExceeded
	})
	db.Enqueue(t, "TX", 1)
	one := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	other := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	<-late
	one.Stop()
	other.Stop()
	db.wantText(t, `1 0`, `SELECT string_agg(iterations || ' ' || attempt, ', ') FROM outbox.task`)
}
