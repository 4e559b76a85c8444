package forward_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// toQueues sends each event to the queue that its key begins with.
var toQueues = forward.Route(func(e *forward.Event) (string, error) { return strings.Split(e.Key, " ")[0], nil })

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
		forward.Handler(handlers.Keep(time.Hour), relaytest.RetrySoon()))
	enqueue(t, db, 40, queueKeys)
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	relaytest.Eventually(t, time.Minute, "the other queue's events",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.done_task`) == 20 })
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "20 1" {
		t.Errorf("done and attempts of the other queue: %s, want 20 1", got)
	}
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
	if s := f.Stats(); s.Open == 0 {
		t.Errorf("%+v", s)
	}
	relaytest.Eventually(t, time.Minute, "20 events to say why they wait", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task
			WHERE last_error LIKE '%forward: unavailable since %queue is at its limit'`) == 20
	})
	if n := db.Int(t, `SELECT COALESCE(max(jsonb_array_length(timeline)), 0) FROM outbox.task
		WHERE attempt = 0`); n != 0 {
		t.Errorf("an event that was put off has %d entries in its timeline", n)
	}
	to.answers(nil)
	nothingLeft(t, db)
	if err := f.Health(); err != nil || f.Stats().Open != 0 {
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
	f := forward.Register(reg, placed, to, toQueues, forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	enqueue(t, db, 40, queueKeys)
	r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	relaytest.Eventually(t, time.Minute, "the other queue's events, and a circuit", func() bool {
		return f.Stats().Published == 20 && strings.Contains(fmt.Sprint(f.Health()), "full since")
	})
	r.Log.Want(t, 1, `target=full`)
	to.answers(nil)
	nothingLeft(t, db)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "40 1" {
		t.Errorf("done and attempts: %s, want 40 1", got)
	}
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
			f := forward.Register(reg, placed, to, forward.Handler(handlers.MaxAttempts(2), handlers.Keep(time.Hour)))
			enqueue(t, db, 2, nil)
			for range 4 {
				relaytest.Once(t, db.DB, reg, relay.Config{})
				db.Do(t, `UPDATE outbox.task SET run_at = now()`)
			}
			if got := db.Text(t, `SELECT string_agg(DISTINCT concat_ws(' ', attempt, timeline -> 0 ->> 'event', last_error LIKE '%429'), ', ') FROM outbox.task`); got != "0 throttled t" {
				t.Errorf("the events are %q, want %q", got, "0 throttled t")
			}
			if s := f.Stats(); s.Temporary != 0 || s.Unavailable < 4 {
				t.Errorf("%+v", s)
			}
			to.answers(nil)
			relaytest.Run(t, db.DB, reg, relay.Config{})
			nothingLeft(t, db)
			if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "2 1" {
				t.Errorf("done and attempts: %s, want 2 1", got)
			}
		})
	}
}

// An event that was put off for three days counts attempts.
func TestPuttingOffHasABound(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	to.answers(func(*forward.Event) error { return forward.Unavailable(errors.New("connection refused"), 0) })
	forward.Register(reg, placed, to, forward.Handler(handlers.MaxAttempts(2), relaytest.RetrySoon()))
	enqueue(t, db, 3, nil)
	relaytest.Once(t, db.DB, reg, relay.Config{})
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.task
		WHERE last_error LIKE 'snooze after % forward: unavailable since %connection refused'`); got != "3 0" {
		t.Fatalf("events that say why they wait, and attempts: %s, want 3 0", got)
	}
	long := `UPDATE outbox.task SET run_at = now(), last_error = regexp_replace(last_error, 'since \S+:', 'since 2020-01-01T00:00:00Z:') WHERE task_id > $1`
	db.Do(t, long, db.Int(t, `SELECT min(task_id) FROM outbox.task`))
	r := relaytest.Run(t, db.DB, reg, relay.Config{})
	relaytest.Eventually(t, time.Minute, "two dead letters",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == 2 })
	if got := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, last_error), '|')
		FROM outbox.dead_task`); strings.Count(got, "2 forward: unavailable since 2020-01-01T00:00:00Z: connection "+
		"refused") != 2 {
		t.Errorf("dead letters: %s", got)
	}
	r.Stop()
	// A redrive begins anew.
	if _, _, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Page{}); err != nil {
		t.Fatal(err)
	}
	relaytest.Once(t, db.DB, reg, relay.Config{})
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.task
		WHERE last_error LIKE 'snooze after %'`); got != "3 0" {
		t.Errorf("after a redrive, events that wait, and attempts: %s, want 3 0", got)
	}
}

// A publisher that has an event wait, as that of webhooks does, says why, and for three days at
// most.
func TestAPublishersSnoozeHasABound(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	to.answers(func(*forward.Event) error { return handlers.SnoozeWith(time.Hour, errors.New("the endpoint hangs")) })
	forward.Register(reg, placed, to, forward.Handler(handlers.MaxAttempts(1)))
	enqueue(t, db, 2, nil)
	relaytest.Once(t, db.DB, reg, relay.Config{})
	db.Do(t, `UPDATE outbox.task SET run_at = now(), last_error = regexp_replace(last_error, 'since \S+:', 'since 2020-01-01T00:00:00Z:')
		WHERE task_id = (SELECT min(task_id) FROM outbox.task)`)
	relaytest.Once(t, db.DB, reg, relay.Config{})
	waiting := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, last_error), '|') FROM outbox.task`)
	dead := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, last_error), '|') FROM outbox.dead_task`)
	if !strings.HasPrefix(waiting, "0 ") || !strings.HasSuffix(waiting, "the endpoint hangs") ||
		!strings.Contains(dead, "since 2020-01-01T00:00:00Z") || !strings.HasPrefix(dead, "1 ") {
		t.Errorf("waiting: %s\ndead: %s", waiting, dead)
	}
}

// hangingOnce says that it is unavailable, hangs in the next call beyond its context, and works
// then.
type hangingOnce struct {
	*broker
	calls   atomic.Int64
	release chan struct{}
}

func (h *hangingOnce) Publish(ctx context.Context, events []*forward.Event) []error {
	switch h.calls.Add(1) {
	case 1:
		errs := make([]error, len(events))
		for i := range errs {
			errs[i] = forward.Unavailable(errors.New("connection refused"), 0)
		}
		return errs
	case 2:
		<-h.release
	}
	return h.broker.Publish(ctx, events)
}

// The trial call hangs. Another one is the trial once its time is over, so events are published.
func TestATrialThatHangsDoesNotHoldUpEventsForEver(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	to := &hangingOnce{broker: &broker{}, release: make(chan struct{})}
	forward.Register(reg, placed, to, forward.BatchSize(1), forward.Timeout(time.Millisecond))
	enqueue(t, db, 2, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 2})
	relaytest.Eventually(t, time.Minute, "another call to publish", func() bool { return len(to.received()) > 0 })
	close(to.release)
	nothingLeft(t, db)
}
