package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// registering registers a handler of one kind, which writes an effect for the task first where it
// has a transaction.
type registering func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option)

func ofKind(kind string) registering {
	return func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
		relaytest.Register(reg, kind, name, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			if tx != nil {
				if err := batchEffect(ctx, tx, tasks); err != nil {
					return err
				}
			}
			return f(tasks[0])
		}, opts...)
	}
}

// kinds register the same handler as each kind.
var kinds = map[string]registering{"tx": ofKind("tx"), "batch": ofKind("batch"), "leased": ofKind("leased")}

func eachKind(t *testing.T, test func(t *testing.T, kind string, db *database)) {
	t.Parallel()
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind, newDatabase(t)) })
	}
}

func TestAResultSaysWhatBecomesOfTheTaskHoweverItIsWrapped(t *testing.T) {
	boom := errors.New("boom")
	results := map[string]struct {
		result error
		want   string // before the result's text
	}{
		"Snooze":        {handlers.Snooze(5 * time.Minute), "0 scheduled 5 min"},
		"SnoozeWith":    {handlers.SnoozeWith(5*time.Minute, boom), "0 scheduled 5 min: "},
		"error":         {boom, "1 scheduled 60 min: "},
		"RetryAfter":    {handlers.RetryAfter(7*time.Minute, boom), "0 scheduled 7 min: "},
		"Discard":       {handlers.Discard(boom), "done"},
		"Dead":          {handlers.Dead(boom), "1 dead by handler: "},
		"Dead_of_nil":   {handlers.Dead(nil), "1 dead by handler: "},
		"After_of_nil":  {handlers.RetryAfter(7*time.Minute, nil), "0 scheduled 7 min: "},
		"After_no_time": {handlers.RetryAfter(-time.Minute, nil), "1 scheduled 60 min: "},
		"After_a_year":  {handlers.RetryAfter(8760*time.Hour, boom), "0 scheduled 4320 min: "},
	}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, wants := handlers.New(), map[string]string{}
		for name, c := range results {
			all := map[string]error{"plain": c.result}
			if c.result != nil {
				all["wrapped"] = fmt.Errorf("while testing: %w", c.result)
				all["joined"] = errors.Join(errors.New("also"), c.result)
			}
			for wrapped, result := range all {
				key := name + " " + wrapped
				if wants[key] = c.want; strings.HasSuffix(c.want, ": ") {
					wants[key] += result.Error()
				}
				if name == "After_a_year" {
					wants[key] += " (the wait is cut to 72h0m0s)"
				}
				kinds[kind](reg, key, func(*outbox.Task[payload]) error {
					return result
				}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
				db.Enqueue(t, key, 1)
			}
		}
		db.Do(t, `CREATE TABLE seen AS SELECT task_id, task_type FROM outbox.task`)
		once(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		for key, want := range wants {
			db.want(t, want, key, `SELECT CASE WHEN t.task_id IS NOT NULL THEN t.attempt || ' ' || t.state || ' ' ||
				round(extract(epoch FROM t.run_at - t.attempted_at) / 60) || ' min' || COALESCE(': ' || t.last_error, '')
				WHEN d.task_id IS NOT NULL THEN d.attempt || ' dead by ' || reason || ': ' || d.last_error ELSE 'done' END
				FROM seen LEFT JOIN outbox.task t USING (task_id) LEFT JOIN outbox.dead_task d USING (task_id)
				WHERE seen.task_type = $1`, key)
			if kind != "leased" { // that handler writes no effect
				db.want(t, map[bool]int{true: 1}[want == "done"], "effects of "+key, `SELECT count(*) FROM effect
					JOIN seen USING (task_id) WHERE task_type = $1`, key)
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

// say is what of each task.
func (s *seenBy) say(what func(outbox.Task[payload]) string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, task := range s.tasks {
		out = append(out, what(task))
	}
	return out
}

func TestAHandlerSeesItsAttemptAndTheLastErrorAndTheRowsMaxAttemptsWin(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		seen := map[string]*seenBy{}
		for name, limit := range map[string]struct{ handler, row int }{"handlers": {3, 0}, "more": {1, 3}, "fewer": {5, 3}} {
			s := &seenBy{}
			seen[name] = s
			kinds[kind](reg, name, func(task *outbox.Task[payload]) error {
				s.see(task)
				return fmt.Errorf("failure %d", task.Attempt)
			}, handlers.MaxAttempts(limit.handler), retrySoon())
			db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts) VALUES ($1, NULLIF($2::int, 0))`, name, limit.row)
		}
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		for name, s := range seen {
			got := s.say(func(task outbox.Task[payload]) string {
				return fmt.Sprintf("%d/%d %s", task.Attempt, task.MaxAttempts, task.LastError)
			})
			if want := []string{"1/3 ", "2/3 failure 1", "3/3 failure 2"}; !slices.Equal(got, want) {
				t.Errorf("%s: the handler saw %q, want %q", name, got, want)
			}
		}
		db.want(t, 3, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE attempt = 3 AND max_attempts = 3
			AND last_error = 'failure 3' AND reason = 'attempts'`)
	})
}

// What a handler sees of a task does not change while the task is retried, dies and is redriven.
func TestRetriesAndDeadLettersKeepWhatTheTaskIs(t *testing.T) {
	const lines = "one\ttwo\nthree \\n" // the separators of a claim's text
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &seenBy{}
		kinds[kind](reg, "KEPT", func(task *outbox.Task[payload]) error {
			seen.see(task)
			return errors.New(lines)
		}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, created_at, max_attempts, timeout_ms)
			VALUES ('KEPT', '{"N": 7, "exact": [1.50, 9007199254740993, 1e400], "text": "é\"\\ \u2028 🎉"}',
			'{"trace": "a\"é", "n": 1.50}', -5, '2001-02-03 04:05:06.789012+00', 2, 4321)`)
		const exact = `SELECT concat(payload, headers, timeout_ms) FROM `
		before := db.Text(t, exact+`outbox.task`)
		for range 2 {
			once(t, db, reg, relay.Config{})
			db.Do(t, `UPDATE outbox.task SET run_at = now()`)
		}
		db.want(t, before, "as a dead letter", exact+`outbox.dead_task WHERE attempt = 2`)
		db.redrive(t, int64(db.Int(t, `SELECT task_id FROM outbox.dead_task`)))
		once(t, db, reg, relay.Config{})
		db.want(t, before, "redriven", exact+`outbox.task WHERE attempt = 1
			AND attempted_at BETWEEN now() - interval '1 hour' AND now()`)
		created := time.Date(2001, 2, 3, 4, 5, 6, 789012000, time.UTC)
		for _, task := range seen.tasks {
			if task.ID != seen.tasks[0].ID || task.Payload.N != 7 || task.Headers["trace"] != `a"é` ||
				task.Priority != -5 || !task.CreatedAt.Equal(created) || task.Type != "KEPT" {
				t.Errorf("the handler saw %+v", task)
			}
		}
		if len(seen.tasks) != 3 || seen.tasks[1].LastError != lines {
			t.Errorf("the handler was called with %+v", seen.tasks)
		}
	})
}
