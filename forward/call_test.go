package forward_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// hanging answers for all events but those with the payload 2.
type hanging struct{ *broker }

func (h hanging) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if string(e.Data) == `{"n": 2}` {
			<-ctx.Done()
			errs[i] = forward.Unavailable(ctx.Err(), 0)
		} else if answer := h.broker.Publish(ctx, []*forward.Event{e}); answer != nil {
			errs[i] = answer[0]
		}
	}
	return errs
}

// An event that never has an answer becomes a dead letter, though the broker answers for others.
func TestAnEventWithoutAnAnswerIsNoOutage(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	f := forward.Register(reg, placed, hanging{to}, forward.Timeout(50*time.Millisecond),
		forward.HandlerOptions(handlers.MaxAttempts(2), relaytest.RetrySoon()))
	enqueue(t, db, 5, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	forwardtest.NothingLeft(t, db)
	db.Want(t, "2 2 context deadline exceeded", `SELECT concat(payload ->> 'n', ' ', attempt, ' ', last_error)
		FROM outbox.dead_task`)
	if s := f.Stats(); s.Published != 4 || s.Temporary != 2 || s.Pause != 0 {
		t.Errorf("got %+v", s)
	}
}

// It cannot be another kind of handler.
func TestAForwarderIsNotToldToBeLeased(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	forward.Register(reg, placed, hanging{&broker{}}, forward.Timeout(20*time.Second))
	enqueue(t, db, 5, nil)
	r := relaytest.Run(t, db.DB, reg, relay.Config{DrainTimeout: time.Millisecond})
	relaytest.Eventually(t, time.Minute, "it is logged", func() bool {
		return r.Log.Count("open for long: the broker has not acknowledged its events") == 1
	})
	r.Log.Want(t, 0, "Leased")
}

// sorting publishes the events in another order, in place.
type sorting struct{ *broker }

func (s sorting) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := s.broker.Publish(ctx, events)
	slices.Reverse(events)
	return errs
}

// A publisher may sort the events of its call: its errors are in the order in which it got them.
func TestAPublisherMaySortTheEventsOfItsCall(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	to.answers(func(e *forward.Event) error {
		if string(e.Data) == `{"n": 2}` {
			return forward.Permanent(errors.New("refused"))
		}
		return nil
	})
	options := []handlers.Option{handlers.MaxAttempts(1)}
	with := forward.HandlerOptions(options...)
	clear(options) // the app's
	forward.Register(reg, placed, sorting{to}, with)
	enqueue(t, db, 5, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	forwardtest.NothingLeft(t, db)
	db.Want(t, "2", `SELECT string_agg(payload ->> 'n', ' ') FROM outbox.dead_task`)
}

// silent answers when its context has ended, and says when it was called.
type silent struct{ called chan struct{} }

func (s silent) Publish(ctx context.Context, events []*forward.Event) []error {
	select {
	case s.called <- struct{}{}:
	default:
	}
	<-ctx.Done()
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = forward.Unavailable(ctx.Err(), 0)
	}
	return errs
}

// A call that ends as an event of it is canceled, or as the relay stops, says nothing about the
// broker.
func TestACallThatIsStoppedIsNoOutage(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(t *testing.T, db *relaytest.Database, r *relaytest.Running){
		"canceled": func(t *testing.T, db *relaytest.Database, _ *relaytest.Running) {
			db.Do(t, `SELECT outbox.cancel_task(min(task_id)) FROM outbox.running`)
			relaytest.Eventually(t, time.Minute, "the event to be gone",
				func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 1 })
		},
		"drained": func(_ *testing.T, _ *relaytest.Database, r *relaytest.Running) { r.Stop() },
	} {
		for targets, keys := range map[string]func(int) []outbox.Option{"one target": func(i int) []outbox.Option { return queueKeys(2 * i) }, "two targets": queueKeys} {
			t.Run(name+", "+targets, func(t *testing.T) {
				t.Parallel()
				db, reg := relaytest.NewDatabase(t), handlers.New()
				to := silent{make(chan struct{}, 1)}
				f := forward.Register(reg, placed, to, toQueues, forward.Timeout(20*time.Second))
				enqueue(t, db, 2, keys)
				r := relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1, DrainTimeout: time.Millisecond})
				<-to.called
				stop(t, db, r)
				if err := f.Health(); err != nil {
					t.Errorf("health: %v", err)
				}
				r.Log.Want(t, 0, "events are not published for now")
				if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE attempt > 0`); n > 0 {
					t.Errorf("%d events have used an attempt", n)
				}
			})
		}
	}
}

// docs/faults.md says what each error of a publisher means.
func TestTheMapOfForwarding(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	answers := map[string]error{
		"forward.Permanent":                     forward.Permanent(refused),
		"an unmarked error":                     refused,
		"forward.TargetUnavailable":             forward.TargetUnavailable(refused, 0),
		"forward.TargetUnavailable with a time": forward.TargetUnavailable(refused, time.Minute),
		"handlers.RetryAfter":                   handlers.RetryAfter(time.Minute, refused),
		"forward.Unavailable":                   forward.Unavailable(refused, 0),
		"no answer in time":                     context.DeadlineExceeded,
	}
	rows := faultmap.Table(t, "Forwarding")
	if len(rows) != len(answers) {
		t.Errorf("%d rows, want %d", len(rows), len(answers))
	}
	for _, row := range rows {
		t.Run(row["error"], func(t *testing.T) {
			t.Parallel()
			answer, known := answers[row["error"]]
			if !known {
				t.Fatal("no such error")
			}
			db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
			to.answers(func(*forward.Event) error { return answer })
			f := forward.Register(reg, placed, slow{to}, forward.Timeout(time.Millisecond))
			enqueue(t, db, 1, nil)
			log := relaytest.Once(t, db.DB, reg, relay.Config{})
			got := strings.Fields(db.Text(t, `SELECT concat_ws(' ', attempt, (SELECT count(*) FROM outbox.dead_task))
				FROM (
				SELECT attempt FROM outbox.task UNION ALL SELECT attempt FROM outbox.dead_task) AS t`))
			if counts := got[0] == "1"; counts != strings.HasPrefix(row["attempt counts"], "yes") {
				t.Errorf("the attempt counts: %v", counts)
			}
			if dead := got[1] == "1"; dead != strings.Contains(row["what follows"], "dead letter at once") {
				t.Errorf("it is a dead letter: %v", dead)
			}
			waits := strings.Contains(row["what follows"], "wait")
			if (f.Health() != nil) != waits || strings.Contains(log, "events are not published for now") != waits {
				t.Errorf("others wait: %v, want %v; log:\n%s", f.Health(), waits, log)
			}
			for level := range strings.SplitSeq(row["log"], ", ") {
				if level, _, _ = strings.Cut(level, " "); level != "INFO" && !strings.Contains(log, "level="+level) {
					t.Errorf("nothing at %s in the log:\n%s", level, log)
				}
			}
		})
	}
}
