package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// kinds register the same handler as each kind. Tx and Batch handlers write an effect for the task first.
var kinds = map[string]func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option){
	"tx": func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
		handlers.Tx(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if err := txEffect(ctx, tx, task); err != nil {
				return err
			}
			return f(task)
		}, opts...)
	},
	"batch": func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
		handlers.Batch(reg, outbox.NewTaskType[payload](name), 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			if err := batchEffect(ctx, tx, tasks); err != nil {
				return err
			}
			return f(tasks[0])
		}, opts...)
	},
	"leased": func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
		handlers.Leased(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, task *outbox.Task[payload]) error { return f(task) }, opts...)
	},
}

func eachKind(t *testing.T, test func(t *testing.T, kind string, db *database)) {
	t.Parallel()
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind, newDatabase(t)) })
	}
}

func TestAResultSaysWhatBecomesOfTheTaskHoweverItIsWrapped(t *testing.T) {
	boom := errors.New("boom")
	type want struct {
		row     string // attempt, state, last_error and the minutes until run_at of the task
		dead    string // attempt, reason, last_error of the dead letter
		effects int    // of a Tx or Batch handler
	}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		wants := map[string]want{}
		for name, c := range map[string]struct {
			result error
			text   string // in last_error, of the result itself
			want   want
		}{
			"nil":          {nil, "", want{effects: 1}},
			"Snooze":       {handlers.Snooze(5 * time.Minute), "", want{row: "0 scheduled 5 min: "}},
			"error":        {boom, "boom", want{row: "1 scheduled 60 min: %s"}},
			"RetryAfter":   {handlers.RetryAfter(7*time.Minute, boom), "retry after 7m0s: boom", want{row: "1 scheduled 7 min: %s"}},
			"Discard":      {handlers.Discard(boom), "", want{effects: 1}},
			"Dead":         {handlers.Dead(boom), "dead: boom", want{dead: "1 handler: %s"}},
			"Dead_of_nil":  {handlers.Dead(nil), "", want{effects: 1}},
			"Retry_of_nil": {handlers.RetryAfter(time.Minute, nil), "", want{effects: 1}},
		} {
			for wrapped, result := range map[string]error{"plain": c.result, "wrapped": fmt.Errorf("while testing: %w", c.result), "joined": errors.Join(errors.New("also"), c.result)} {
				if c.result == nil && wrapped != "plain" {
					continue
				}
				key, text := name+" "+wrapped, c.text
				switch wrapped {
				case "wrapped":
					text = "while testing: " + text
				case "joined":
					text = "also\n" + text
				}
				w := c.want
				if w.row != "" && name != "Snooze" {
					w.row = fmt.Sprintf(w.row, text)
				}
				if w.dead != "" {
					w.dead = fmt.Sprintf(w.dead, text)
				}
				wants[key] = w
				kinds[kind](reg, key, func(*outbox.Task[payload]) error { return result }, handlers.Backoff(constant(time.Hour)))
				db.Enqueue(t, key, 1)
			}
		}
		db.Do(t, `CREATE TABLE seen AS SELECT task_id, task_type FROM outbox.task`)
		once(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		for key, w := range wants {
			got := want{
				row: db.Text(t, `SELECT attempt || ' ' || state || ' ' || round(extract(epoch FROM run_at - clock_timestamp()) / 60) || ' min: ' || COALESCE(last_error, '')
					FROM outbox.task RIGHT JOIN seen USING (task_id) WHERE seen.task_type = $1`, key),
				dead: db.Text(t, `SELECT attempt || ' ' || reason || ': ' || last_error FROM outbox.dead_task RIGHT JOIN seen USING (task_id)
					WHERE seen.task_type = $1`, key),
				effects: db.Int(t, `SELECT count(*) FROM effect JOIN seen USING (task_id) WHERE task_type = $1`, key),
			}
			if kind == "leased" {
				w.effects = 0 // that handler writes none
			}
			if got != w {
				t.Errorf("%s: %+v, want %+v", key, got, w)
			}
		}
	})
}

// seenBy keeps what a handler saw of its tasks.
type seenBy struct {
	mu    sync.Mutex
	tasks []outbox.Task[payload]
}

func (s *seenBy) see(task *outbox.Task[payload]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = append(s.tasks, *task)
}

// calls are the attempts, of max attempts, and last errors that a handler saw.
func (s *seenBy) calls() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, task := range s.tasks {
		out = append(out, fmt.Sprintf("%d/%d %s", task.Attempt, task.MaxAttempts, task.LastError))
	}
	return out
}

func TestAHandlerSeesItsAttemptAndTheLastErrorAndTheRowsMaxAttemptsWin(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		limits := map[string]struct{ handler, row int }{"handlers": {3, 0}, "more": {1, 3}, "fewer": {5, 3}}
		seen := map[string]*seenBy{}
		for name, limit := range limits {
			s := &seenBy{}
			seen[name] = s
			kinds[kind](reg, name, func(task *outbox.Task[payload]) error {
				s.see(task)
				return fmt.Errorf("failure %d", task.Attempt)
			}, handlers.MaxAttempts(limit.handler), handlers.Backoff(constant(time.Millisecond)))
			db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts) VALUES ($1, NULLIF($2::int, 0))`, name, limit.row)
		}
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		for name, s := range seen {
			if got, want := s.calls(), []string{"1/3 ", "2/3 failure 1", "3/3 failure 2"}; !slices.Equal(got, want) {
				t.Errorf("%s: the handler saw %q, want %q", name, got, want)
			}
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 3 AND max_attempts = 3 AND last_error = 'failure 3' AND reason = 'attempts'`); n != len(limits) {
			t.Errorf("%d of %d dead letters are as they should be\n%s", n, len(limits), db.Dump(t))
		}
	})
}

func TestSnoozeCountsNoAttemptHoweverOften(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &seenBy{}
		kinds[kind](reg, "SNOOZER", func(task *outbox.Task[payload]) error {
			seen.see(task)
			if len(seen.calls()) < 5 {
				return handlers.Snooze(time.Millisecond)
			}
			return nil
		}, handlers.MaxAttempts(1))
		db.Enqueue(t, "SNOOZER", 1)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		if got, want := seen.calls(), slices.Repeat([]string{"1/1 "}, 5); !slices.Equal(got, want) {
			t.Errorf("the handler saw %q, want %q", got, want)
		}
		db.want(t, 0, "a dead letter", `SELECT count(*) FROM outbox.dead_task`)
	})
}

func TestABackoffThatStopsMakesADeadLetter(t *testing.T) {
	needs.Long(t)
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		kinds[kind](reg, "STOPPED", func(*outbox.Task[payload]) error { return errors.New("boom") },
			handlers.Backoff(func() retry.Backoff { return retry.WithMaxRetries(1, retry.NewConstant(time.Millisecond)) }))
		db.Enqueue(t, "STOPPED", 1)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		db.want(t, "handler 2/10 boom", "the dead letter", `SELECT reason || ' ' || attempt || '/' || max_attempts || ' ' || last_error FROM outbox.dead_task`)
	})
}

// What a task is does not change while it is retried, nor when it dies.
func TestRetriesAndDeadLettersKeepWhatTheTaskIs(t *testing.T) {
	const identity = `SELECT json_build_array(task_id, task_type, payload::text, headers::text, priority, created_at::text)::text FROM `
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &seenBy{}
		kinds[kind](reg, "KEPT", func(task *outbox.Task[payload]) error {
			seen.see(task)
			return errors.New("boom")
		}, handlers.Backoff(constant(time.Hour)))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, created_at, max_attempts)
			VALUES ('KEPT', '{"N": 7, "exact": [1.50, 9007199254740993, 1e400], "text": "é\"\\ \u2028 🎉"}', '{"trace": "a\"é", "n": 1.50}', -5,
			  '2001-02-03 04:05:06.789012+00', 2)`)
		before := db.Text(t, identity+`outbox.task`)
		once(t, db, reg, relay.Config{})
		if got := db.Text(t, identity+`outbox.task`); got != before {
			t.Errorf("after a retry\n%s, want\n%s", got, before)
		}
		db.want(t, "1/2", "after a retry attempts", `SELECT attempt || '/' || max_attempts FROM outbox.task WHERE attempted_at BETWEEN now() - interval '1 minute' AND now()`)
		db.Do(t, `UPDATE outbox.task SET run_at = now()`)
		once(t, db, reg, relay.Config{})
		if got := db.Text(t, identity+`outbox.dead_task`); got != before {
			t.Errorf("as a dead letter\n%s, want\n%s", got, before)
		}
		created := time.Date(2001, 2, 3, 4, 5, 6, 789012000, time.UTC)
		for _, task := range seen.tasks {
			if task.Payload.N != 7 || task.Headers["trace"] != `a"é` || task.Priority != -5 || !task.CreatedAt.Equal(created) || task.Type != "KEPT" {
				t.Errorf("the handler saw %+v", task)
			}
		}
		if len(seen.tasks) != 2 || seen.tasks[0].ID != seen.tasks[1].ID {
			t.Errorf("the handler was called with %+v", seen.tasks)
		}
	})
}
