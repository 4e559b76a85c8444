package forward_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// toQueues sends each event to the queue that its key begins with.
var toQueues = forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
	return strings.Split(e.OrderingKey, " ")[0], nil
})

func queueKeys(i int) []outbox.Option {
	return []outbox.Option{outbox.OrderedBy(fmt.Sprint([]string{"full", "free"}[i%2], " ", i))}
}

// One queue is full. The events of another one are published with their first attempt, and of the
// full one's only those that were sent have used one.
func TestAFullTargetHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	full := func(e *forward.Event) error {
		if e.To == "full" {
			return forward.TargetUnavailable(errors.New("queue is at its limit"), 0)
		}
		return nil
	}
	to.answers(full)
	f := forward.Register(reg, placed, to, toQueues, forward.BatchSize(4),
		forward.HandlerOptions(handlers.Retention(time.Hour), relaytest.RetrySoon()))
	enqueue(t, db, 40, queueKeys)
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	relaytest.Eventually(t, time.Minute, "the other queue's events",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.done_task`) == 20 })
	db.Want(t, "20 1", doneSQL)
	relaytest.Eventually(t, time.Minute, "two trials",
		func() bool { return r.Log.Count("queue is at its limit") > 0 && f.Stats().Temporary >= 4 })
	if n := db.Int(t, `SELECT sum(attempt) FROM outbox.task`); n > int(f.Stats().Temporary) ||
		f.Stats().Temporary > 19 {
		t.Errorf("%d attempts, %+v: events that were not sent have used attempts", n, f.Stats())
	}
	r.Log.Want(t, 1, `level=WARN msg="outbox: events are not published for now" task_type=order.placed target=full`)
	if err := f.Health(); !errors.Is(err, forward.ErrUnavailable) || !strings.Contains(err.Error(), "full since ") ||
		!strings.Contains(err.Error(), "queue is at its limit") {
		t.Errorf("health: %v", err)
	}
	if s := f.Stats(); s.Pause == 0 {
		t.Errorf("%+v", s)
	}
	relaytest.Eventually(t, time.Minute, "20 events to say why they wait", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task
			WHERE last_error LIKE '%forward: unavailable since %queue is at its limit'`) == 20
	})
	db.Want(t, "0", `SELECT COALESCE(max(jsonb_array_length(timeline)), 0) FROM outbox.task
		WHERE attempt = 0`)
	to.answers(nil)
	forwardtest.NothingLeft(t, db)
	if err := f.Health(); err != nil || f.Stats().Pause != 0 {
		t.Errorf("health: %v, %+v", err, f.Stats())
	}
	r.Log.Want(t, 1, `level=INFO msg="outbox: events are published again" task_type=order.placed target=full`)
}

// A part of the broker cannot be reached, as one node of a cluster: its targets are held up, and no
// attempt counts.
func TestATargetThatCannotBeReachedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	to.answers(func(e *forward.Event) error {
		if e.To == "full" {
			return forward.Unavailable(errors.New("connection refused"), 0)
		}
		return nil
	})
	f := forward.Register(reg, placed, to, toQueues,
		forward.HandlerOptions(handlers.MaxAttempts(1), handlers.Retention(time.Hour)))
	enqueue(t, db, 40, queueKeys)
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	relaytest.Eventually(t, time.Minute, "the other queue's events, and a circuit", func() bool {
		return f.Stats().Published == 20 && strings.Contains(fmt.Sprint(f.Health()), "full since")
	})
	r.Log.Want(t, 1, `target=full`)
	to.answers(nil)
	forwardtest.NothingLeft(t, db)
	db.Want(t, "40 1", doneSQL)
}

// A target that asks to wait costs its events no attempt, by either way to say so.
func TestATargetThatAsksToWaitUsesNoAttempt(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"RetryAfter":        handlers.RetryAfter(time.Millisecond, errors.New("429")),
		"TargetUnavailable": forward.TargetUnavailable(errors.New("429"), time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
			to.answers(func(*forward.Event) error { return answer })
			f := forward.Register(reg, placed, to,
				forward.HandlerOptions(handlers.MaxAttempts(2), handlers.Retention(time.Hour)))
			enqueue(t, db, 2, nil)
			for range 4 {
				relaytest.Once(t, db.DB, reg, relay.Config{})
				db.Do(t, `UPDATE outbox.task SET run_at = now()`)
			}
			db.Want(t, "0 throttled t", `SELECT string_agg(DISTINCT concat_ws(' ', attempt, timeline -> 0 ->> 'event',
				last_error LIKE '%429'), ', ') FROM outbox.task`)
			if s := f.Stats(); s.Temporary != 0 || s.Unavailable < 4 {
				t.Errorf("%+v", s)
			}
			to.answers(nil)
			relaytest.Run(t, db.DB, reg, relay.Config{})
			forwardtest.NothingLeft(t, db)
			db.Want(t, "2 1", doneSQL)
		})
	}
}

// An event that was put off for three days counts attempts: by the circuit, or by a publisher that
// has it wait, as that of webhooks does. A redrive begins anew.
func TestPuttingOffHasABound(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"unavailable": forward.Unavailable(errors.New("refused"), 0),
		"snooze":      handlers.SnoozeWith(time.Hour, errors.New("refused")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
			to.answers(func(*forward.Event) error { return answer })
			forward.Register(reg, placed, to, forward.HandlerOptions(handlers.MaxAttempts(2), relaytest.RetrySoon()))
			enqueue(t, db, 3, nil)
			waiting := func(want string) {
				t.Helper()
				relaytest.Once(t, db.DB, reg, relay.Config{})
				if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.task
					WHERE last_error LIKE 'snooze after % forward: unavailable since %refused'`); got != want {
					t.Fatalf("events that say why they wait, and attempts: %s, want %s", got, want)
				}
			}
			waiting("3 0")
			db.Do(t, `UPDATE outbox.task SET run_at = now(),
				last_error = regexp_replace(last_error, 'since \S+:', 'since 2020-01-01T00:00:00Z:') WHERE task_id > $1`,
				db.Int(t, `SELECT min(task_id) FROM outbox.task`))
			r := relaytest.Run(t, db.DB, reg, relay.Config{})
			relaytest.Eventually(t, time.Minute, "two dead letters",
				func() bool { return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == 2 })
			if got := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, last_error), '|')
				FROM outbox.dead_task`); strings.Count(got, "2 forward: unavailable since 2020-01-01T00:00:00Z: refused") != 2 {
				t.Errorf("dead letters: %s", got)
			}
			r.Stop()
			_, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
			forwardtest.Must(t, err)
			waiting("3 0")
		})
	}
}

// A publisher that has an event wait for longer than three days is asked again then. One that says
// to wait without an error has not published the event.
func TestAPublishersWaitIsCutToThreeDays(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]error{
		"snooze":        handlers.Snooze(8760 * time.Hour),
		"retry after":   handlers.RetryAfter(8760*time.Hour, errors.New("429")),
		"without error": handlers.RetryAfter(8760*time.Hour, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
			to.answers(func(*forward.Event) error { return answer })
			forward.Register(reg, placed, to)
			enqueue(t, db, 2, nil)
			relaytest.Once(t, db.DB, reg, relay.Config{})
			db.Want(t, "2 0 72 t", `SELECT concat_ws(' ', count(*), max(attempt),
				round(extract(epoch FROM max(run_at - created_at)) / 3600),
				bool_and(last_error LIKE '%(the wait is cut to 72h0m%')) FROM outbox.task`)
		})
	}
}

// No header of an app, however it was enqueued, sets an event's id or time.
func TestNoHeaderOfAnAppSetsAnEventsID(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	forward.Register(reg, placed, to)
	shipped := outbox.NewTaskType[forwardtest.Payload]("order.shipped")
	forward.Fanout(reg, shipped, map[string]forward.Target{"billing": {Publisher: to}})
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := placed.Enqueue(t.Context(), tx, forwardtest.Payload{N: 1},
			outbox.Headers(map[string]string{"Outbox-Event-ID": "7"}))
		return err
	})
	if !errors.Is(err, outbox.ErrInvalidOption) || !strings.Contains(err.Error(), "Outbox-Event-ID") {
		t.Errorf("Enqueue: %v, want ErrInvalidOption that names the header", err)
	}
	const insert = `INSERT INTO outbox.task (task_type, payload, headers) VALUES ($1, '{"n": 1}', $2)`
	forged := `{"outbox-event-id": "7", "outbox-event-time": "2001-01-01T00:00:00Z", "mine": "1"}`
	db.Do(t, insert, "order.placed", forged)
	db.Do(t, insert, "order.shipped", forged)
	db.Do(t, insert, "order.shipped/billing", `{"outbox-event-id": "7", "mine": "1"}`)
	ids := db.Text(t, keysSQL)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	for _, e := range to.received() {
		if !strings.Contains(" "+ids+" ", " "+e.ID+" ") || e.Time.Year() < 2020 ||
			!maps.Equal(e.Headers, map[string]string{"mine": "1"}) {
			t.Errorf("event %s of %v with %v, want one of %s", e.ID, e.Time, e.Headers, ids)
		}
	}
	if n := len(to.received()); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

// What Register publishes Fanout copies: all headers and any payload that a task may have.
func TestFanoutCopiesWhatRegisterTakes(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	text := outbox.NewTaskType[string]("text")
	forward.Fanout(reg, text, map[string]forward.Target{"a": {Publisher: to}, "b": {Publisher: to}})
	header := map[string]string{"h": strings.Repeat("x", 4095)}
	relaytest.Must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := text.Enqueue(t.Context(), tx, strings.Repeat("y", 1<<20), outbox.Headers(header),
			outbox.MaxPayload(2<<20), outbox.OrderedBy("k"))
		return err
	}))
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers)
		VALUES ('text', to_jsonb(repeat('y', 1 << 20)), jsonb_build_object('h', repeat('x', 10000)))`)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	db.Want(t, "0", `SELECT concat(count(*), min(last_error)) FROM outbox.dead_task`)
	all := to.received()
	if len(all) != 4 {
		t.Fatalf("%d events, want 4", len(all))
	}
	for _, e := range all {
		if len(e.Data) != 1<<20+2 || len(e.Headers) != 1 || len(e.Headers["h"]) < 4095 {
			t.Errorf("event %s has %d bytes and %d headers", e.ID, len(e.Data), len(e.Headers))
		}
	}
}
