package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A run that another living relay has in the journal may have lost its connection, which is no
// attempt: it does not count before it is known to have been one.
func TestAnAttemptDoesNotCountARunThatIsUndecided(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Enqueue(t, kind, 1)
			db.Do(t, dead(someUUID, "4 minutes")+`
				INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), '`+someUUID+`'
				FROM outbox.task`)
			var calls []int
			reg := handlers.New()
			each(reg, kind, func(_ context.Context, task *outbox.Task[payload]) error {
				calls = append(calls, task.Attempt)
				if len(calls) == 1 {
					return errors.New("failed")
				}
				return nil
			}, retrySoon())
			log := once(t, db, reg, relay.Config{Workers: 1})
			db.Do(t, `UPDATE outbox.running SET lost_connection = true`) // its relay notes it
			log += once(t, db, reg, relay.Config{Workers: 1})
			if fmt.Sprint(calls) != "[1 2]" || !strings.Contains(log, "an attempt failed") {
				t.Errorf("the handler saw the attempts %v, want 1 and 2:\n%s", calls, log)
			}
		})
	}
}

// A server answers 429 with Retry-After: 900 for six hours. The clock is moved by moving the due
// times of the tasks. The handlers have no options. Of runs that are throttled in a row the first
// one is worth a line in the log.
func TestARateLimitOfSixHoursUsesNoAttempt(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var up atomic.Bool
	var attempts atomic.Int64 // the highest
	types := map[string]string{"TX": "tx", "GROUP": "tx", "BATCH": "batch", "LEASED": "complete"}
	for name, kind := range types {
		var options []handlers.Option
		if name == "GROUP" {
			options = append(options, handlers.GroupCommit(10, within))
		}
		relaytest.Register(reg, kind, name, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			some, err := handlers.BatchResult{}, error(nil)
			for _, task := range tasks {
				attempts.Store(max(attempts.Load(), int64(task.Attempt)))
				if !up.Load() {
					err = fmt.Errorf("send: %w", handlers.RetryAfter(15*time.Minute, errors.New("429 Too Many Requests")))
					some[task.ID] = err
				}
			}
			if err != nil && kind == "batch" {
				return some
			}
			return err
		}, options...)
		db.Enqueue(t, name, 2)
	}
	h, log := &heard{}, ""
	const rounds = 24
	for range rounds {
		log += once(t, db, reg, relay.Config{Workers: 2, Observers: h.observers()})
		if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE run_at < attempted_at + interval '15 minutes'`); n != 0 {
			t.Fatalf("%d tasks come back sooner than asked for", n)
		}
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - interval '20 minutes'`)
	}
	if n := strings.Count(log, `level=INFO msg="outbox: a task was throttled"`); n != 2*len(types) ||
		strings.Count(log, "a task was throttled") != 2*len(types)*rounds ||
		strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("%d records at Info, want one of each task:\n%s", n, log)
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if n := attempts.Load(); n != 1 {
		t.Errorf("the handlers saw attempt %d, want 1", n)
	}
	db.wantText(t, fmt.Sprintf("0 1 throttled %d send: retry after 15m0s: 429 Too Many Requests t", rounds),
		`SELECT string_agg(DISTINCT concat_ws(' ', attempt, jsonb_array_length(timeline),
		timeline -> 0 ->> 'event', timeline -> 0 ->> 'times', last_error,
		(timeline -> 0 ->> 'error') = last_error), ', ') FROM outbox.task`)
	for name := range types {
		if got := h.outcomes()[name]; strings.Count(got, "throttled") != 2*rounds || len(strings.Fields(got)) != 2*rounds {
			t.Errorf("observers of %s heard of %s", name, got)
		}
	}
	up.Store(true)
	once(t, db, reg, relay.Config{Workers: 2})
	db.wantRows(t, 0, `outbox.task`)
	db.wantRows(t, 0, `outbox.dead_task`)
}

// A mail server is down for six hours: each mail arrives, and once.
func TestMailArrivesAfterAnOutageOfSixHours(t *testing.T) {
	t.Parallel()
	const mails = 20
	db, reg := newDatabase(t), handlers.New()
	var passed time.Duration
	var refused, arrived atomic.Int64
	for _, kind := range []string{"TX", "LEASED"} {
		each(reg, kind, func(context.Context, *outbox.Task[payload]) error {
			if passed <= 6*time.Hour {
				refused.Add(1)
				return errors.New("421 not available")
			}
			arrived.Add(1)
			return nil
		})
		db.Enqueue(t, kind, mails)
	}
	for passed < 4*24*time.Hour && db.Int(t, `SELECT count(*) FROM outbox.task`) > 0 {
		once(t, db, reg, relay.Config{})
		step := max(time.Second, passed/2)
		passed += step
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - $1::bigint * interval '1 microsecond'`, step.Microseconds())
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if arrived.Load() != 2*mails || refused.Load() < 2*mails*5 {
		t.Errorf("%d mails arrived after %d refusals, want %d, each refused five times or more", arrived.Load(),
			refused.Load(), 2*mails)
	}
}

// After three days, or MaxElapsed, each wait is a failed attempt. MaxElapsed counts failures as well,
// also while relays are away. A redrive begins anew.
func TestARateLimitForEverEndsInTheDeadLetters(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	busy := func(*outbox.Task[payload]) error {
		return handlers.RetryAfter(10*time.Minute, errors.New("429 Too Many Requests"))
	}
	kinds["tx"](reg, "DAYS", busy, handlers.MaxAttempts(2))
	kinds["batch"](reg, "HOUR", busy, handlers.MaxElapsed(time.Hour))
	kinds["leased"](reg, "FAILS", func(*outbox.Task[payload]) error { return errAlways },
		handlers.MaxElapsed(90*time.Minute), handlers.Backoff(constant(10*time.Minute)))
	for _, name := range []string{"DAYS", "HOUR", "FAILS"} {
		db.Enqueue(t, name, 1)
	}
	want := func(when, want string) {
		t.Helper()
		once(t, db, reg, relay.Config{Workers: 1})
		db.want(t, want, when, `SELECT COALESCE(string_agg(concat_ws(' ', task_type, attempt, reason), ', '
			ORDER BY task_type), '') FROM (SELECT task_type, attempt, NULL AS reason FROM outbox.task
			UNION ALL SELECT task_type, attempt, reason FROM outbox.dead_task) AS t`)
	}
	want("at first", "DAYS 0, FAILS 1, HOUR 0")
	for _, step := range []struct{ passes, want string }{
		{"45 minutes", "DAYS 0, FAILS 2, HOUR 0"},
		{"20 minutes", "DAYS 0, FAILS 3, HOUR 1 handler"},
		{"70 hours", "DAYS 0, FAILS 4 handler, HOUR 1 handler"},
		{"1 hour", "DAYS 1, FAILS 4 handler, HOUR 1 handler"},
		{"1 hour", "DAYS 2 attempts, FAILS 4 handler, HOUR 1 handler"},
	} {
		db.Do(t, `UPDATE outbox.task SET run_at = now(), timeline = jsonb_set(timeline, '{0,at}',
			to_jsonb((timeline -> 0 ->> 'at')::timestamptz - $1::interval))`, step.passes)
		want("after "+step.passes, step.want)
	}
	if _, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{}); err != nil {
		t.Fatal(err)
	}
	want("after a redrive", "DAYS 0, FAILS 1, HOUR 0")
}
