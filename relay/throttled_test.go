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
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A server answers 429 with Retry-After: 1 for six hours. The clock is moved by moving the due times
// of the tasks. The handlers have no options.
func TestARateLimitOfSixHoursUsesNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var up atomic.Bool
	var attempts atomic.Int64 // the highest
	send := func(task *outbox.Task[payload]) error {
		attempts.Store(max(attempts.Load(), int64(task.Attempt)))
		if !up.Load() {
			return fmt.Errorf("send: %w", handlers.RetryAfter(time.Second, errors.New("429 Too Many Requests")))
		}
		return nil
	}
	reg := handlers.New()
	registerTx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return send(task) })
	registerTx(reg, outbox.NewTaskType[payload]("GROUP"),
		func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			return send(task)
		},
		handlers.GroupCommit(10, within))
	handlers.Batch(reg, typeBatch, 10, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error {
		some := handlers.BatchError{}
		for _, task := range tasks {
			if err := send(task); err != nil {
				some[task.ID] = err
			}
		}
		if len(some) > 0 {
			return some
		}
		return nil
	})
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(*sql.Tx) error { return send(task) })
	})
	types := []string{"TX", "GROUP", "BATCH", "LEASED"}
	for _, name := range types {
		db.Enqueue(t, name, 2)
	}
	h := &heard{}
	const rounds = 24
	for range rounds {
		log := once(t, db, reg, relay.Config{Workers: 2, Observers: h.observers()})
		if strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
			t.Fatalf("the log of a server that asks to wait:\n%s", log)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE run_at < attempted_at + interval '1 second'`); n != 0 {
			t.Fatalf("%d tasks come back sooner than asked for", n)
		}
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - interval '15 minutes'`)
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if n := attempts.Load(); n != 1 {
		t.Errorf("the handlers saw attempt %d, want 1", n)
	}
	want := fmt.Sprintf("0 1 throttled %d send: retry after 1s: 429 Too Many Requests t", rounds)
	if got := db.Text(t, `SELECT string_agg(DISTINCT concat_ws(' ', attempt, jsonb_array_length(timeline),
		timeline -> 0 ->> 'event', timeline -> 0 ->> 'times', last_error,
		(timeline -> 0 ->> 'error') = last_error), ', ') FROM outbox.task`); got != want {
		t.Errorf("the tasks are %q, want %q", got, want)
	}
	for _, name := range types {
		if got := h.outcomes()[name]; strings.Count(got, "throttled") != 2*rounds || len(strings.Fields(got)) != 2*rounds {
			t.Errorf("observers of %s heard of %s", name, got)
		}
	}
	up.Store(true)
	once(t, db, reg, relay.Config{Workers: 2})
	db.wantRows(t, 0, `outbox.task`)
	db.wantRows(t, 0, `outbox.dead_task`)
}

// After three days, or MaxElapsed, each wait is a failed attempt. A redrive begins anew.
func TestARateLimitForEverEndsInTheDeadLetters(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		busy := func(*outbox.Task[payload]) error {
			return handlers.RetryAfter(time.Second, errors.New("429 Too Many Requests"))
		}
		kinds[kind](reg, "DAYS", busy, handlers.MaxAttempts(2))
		kinds[kind](reg, "HOUR", busy, handlers.MaxElapsed(time.Hour))
		db.Enqueue(t, "DAYS", 1)
		db.Enqueue(t, "HOUR", 1)
		run := func() string {
			once(t, db, reg, relay.Config{Workers: 1})
			return db.Text(t, `SELECT COALESCE(string_agg(concat_ws(' ', task_type, attempt, reason), ', '
				ORDER BY task_type), '') FROM (
				SELECT task_type, attempt, NULL AS reason FROM outbox.task UNION ALL SELECT task_type, attempt, reason
				FROM outbox.dead_task) AS t`)
		}
		pass := func(d string) {
			db.Do(t, `UPDATE outbox.task SET run_at = now(), timeline = jsonb_set(timeline, '{0,at}',
				to_jsonb((timeline -> 0 ->> 'at')::timestamptz - $1::interval))`, d)
		}
		var got []string
		got = append(got, run())
		pass("59 minutes")
		got = append(got, run())
		pass("2 minutes")
		got = append(got, run())
		pass("70 hours")
		got = append(got, run())
		pass("1 hour")
		got = append(got, run())
		pass("1 hour")
		got = append(got, run())
		want := []string{"DAYS 0, HOUR 0", "DAYS 0, HOUR 0", "DAYS 0, HOUR 1 handler", "DAYS 0, HOUR 1 handler",
			"DAYS 1, HOUR 1 handler", "DAYS 2 attempts, HOUR 1 handler"}
		if strings.Join(got, "; ") != strings.Join(want, "; ") {
			t.Errorf("the tasks were\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if _, _, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Page{}); err != nil {
			t.Fatal(err)
		}
		if got := run(); got != "DAYS 0, HOUR 0" {
			t.Errorf("after a redrive: %s", got)
		}
	})
}

// Of runs that are throttled in a row the first one is worth a line in the log.
func TestARateLimitIsLoggedOnceInARow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Leased(reg, typeLeased, func(context.Context, *outbox.Task[payload]) error {
		return handlers.RetryAfter(time.Minute, errors.New("429"))
	})
	db.Enqueue(t, "LEASED", 1)
	log := ""
	for range 3 {
		log += once(t, db, reg, relay.Config{})
		db.Do(t, `UPDATE outbox.task SET run_at = now()`)
	}
	if n, all := strings.Count(log, `level=INFO msg="outbox: a task was throttled" task_type=LEASED`), strings.Count(log,
		"a task was throttled"); n != 1 || all != 3 {
		t.Errorf("%d records at Info of %d, want 1 of 3:\n%s", n, all, log)
	}
}
