package forward_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// broker is a Publisher that keeps what it acknowledges. answer decides on each event.
type broker struct {
	mu     sync.Mutex
	answer func(e *forward.Event) error
	got    []forward.Event
	asked  int
}

func (b *broker) Publish(_ context.Context, events []*forward.Event) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	errs, failed := make([]error, len(events)), false
	for i, e := range events {
		b.asked++
		if b.answer != nil {
			errs[i] = b.answer(e)
		}
		if errs[i] == nil {
			b.got = append(b.got, *e)
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (b *broker) answers(f func(e *forward.Event) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

func (b *broker) received() []forward.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

// enqueue enqueues n events with the options of each.
func enqueue(t *testing.T, db *relaytest.Database, n int, opts func(i int) []outbox.Option) {
	t.Helper()
	var tasks []outbox.TaskSpec
	for i := range n {
		task := placed.New(forwardtest.Payload{N: i})
		if opts != nil {
			task.Options = opts(i)
		}
		tasks = append(tasks, task)
	}
	relaytest.EnqueueAll(db.DB, tasks...)
}

var placed = forwardtest.Placed

// keysSQL is the keys of the tasks, in their order.
const keysSQL = `SELECT string_agg(concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3), '-8000-',
		lpad(to_hex(task_id), 12, '0')), ' ' ORDER BY task_id)
	FROM outbox.task, outbox.identity`

// doneSQL is the number of done tasks and the most attempts of one.
const doneSQL = `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`

func TestATaskBecomesAnEvent(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	f := forward.Register(reg, placed, to, forward.Source("/shop"), forward.To("shop.{type}.{key}"),
		forward.Subject(func(_ context.Context, e *forward.Event) (string, error) { return "order/" + e.OrderingKey, nil }))
	enqueue(t, db, 1, func(int) []outbox.Option {
		return []outbox.Option{outbox.OrderedBy("c7"),
			outbox.Headers(map[string]string{"traceparent": "00-1", "CE_id": "forged"})}
	})
	id, created := db.Text(t, keysSQL), db.Text(t,
		`SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS') FROM outbox.task`)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	got := to.received()
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	e := got[0]
	if e.ID != id || e.Type != "order.placed" || e.Source != "/shop" || e.OrderingKey != "c7" ||
		e.To != "shop.order.placed.c7" || string(e.Data) != `{"n": 0}` || e.Attempt != 1 {
		t.Errorf("the event is %+v", e)
	}
	var headers []string
	for _, h := range e.CloudEvents("ce_") {
		headers = append(headers, h.Name+"="+h.Value)
	}
	for i, want := range []string{"ce_specversion=1.0", "ce_id=" + id, "ce_source=/shop", "ce_type=order.placed",
		"ce_time=" + created, "ce_subject=order/c7", "ce_partitionkey=c7", "traceparent=00-1"} {
		if i >= len(headers) || headers[i][:min(len(want), len(headers[i]))] != want {
			t.Fatalf("the headers are %q, want %q at %d", headers, want, i)
		}
	}
	if len(headers) != 8 {
		t.Errorf("the headers are %q: a task's header took the place of an attribute", headers)
	}
	if s := f.Stats(); s != (forward.Stats{Published: 1}) {
		t.Errorf("%+v", s)
	}
}

// While the broker is away nothing is counted, however often it is tried; then everything arrives.
func TestAnUnavailableBrokerCountsNoAttempt(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	to.answers(func(*forward.Event) error { return forward.Unavailable(errors.New("connection refused"), 0) })
	f := forward.Register(reg, placed, to, forward.HandlerOptions(handlers.MaxAttempts(1), handlers.Retention(time.Hour)))
	enqueue(t, db, 5, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	relaytest.Eventually(t, time.Minute, "two failures", func() bool { return f.Stats().Unavailable >= 10 })
	if f.Stats().Pause == 0 {
		t.Error("the circuit is closed")
	}
	to.answers(nil)
	forwardtest.NothingLeft(t, db)
	if got := db.Text(t, doneSQL); got != "5 1" || len(to.received()) != 5 || f.Stats().Pause != 0 {
		t.Errorf("done and attempts %s, %d events, %+v", got, len(to.received()), f.Stats())
	}
}

// slow answers after its context has ended, while its broker does not answer.
type slow struct{ *broker }

func (s slow) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := s.broker.Publish(ctx, events)
	if errs != nil {
		<-ctx.Done()
	}
	return errs
}

// Events of a key are published in their order, though some fail and the broker goes away.
func TestTheOrderOfAKeyIsKept(t *testing.T) {
	t.Parallel()
	db, to, reg := relaytest.NewDatabase(t), &broker{}, handlers.New()
	n := 0
	to.answers(func(*forward.Event) error {
		switch n++; {
		case n%7 == 0:
			return errors.New("now and then")
		case n == 20:
			return forward.Unavailable(errors.New("away"), time.Millisecond)
		}
		return nil
	})
	forward.Register(reg, placed, to, forward.HandlerOptions(relaytest.RetrySoon()))
	forwardtest.Enqueue(t, db, 0, 60, 4)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 4})
	forwardtest.NothingLeft(t, db)
	var got []forwardtest.Received
	for _, e := range to.received() {
		got = append(got, forwardtest.Received{Key: e.OrderingKey, ID: e.ID, Data: e.Data})
	}
	forwardtest.Check(t, got, 60, 4, true)
}

// Each target has its own progress: one that refuses all does not hold up the other.
func TestEachTargetHasItsOwnProgress(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	billing, search := &broker{}, &broker{}
	search.answers(func(*forward.Event) error { return forward.Permanent(errors.New("no index")) })
	all := forward.Fanout(reg, placed, map[string]forward.Target{
		"billing": {Publisher: billing}, "search": {Publisher: search,
			Options: []forward.Option{forward.To("documents"), forward.TaskOptions(outbox.MaxAttempts(3))}},
	}, forward.To("orders"), forward.TaskOptions(outbox.MaxAttempts(9)))
	enqueue(t, db, 3, func(i int) []outbox.Option {
		return []outbox.Option{outbox.OrderedBy("k"), outbox.Priority(-2),
			outbox.Headers(map[string]string{"traceparent": "00-1"})}
	})
	ids, source := db.Text(t, keysSQL), db.Text(t, `SELECT 'urn:uuid:' || database_id FROM outbox.identity`)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	var got []string
	for _, e := range billing.received() {
		got = append(got, e.ID)
		if e.Type != "order.placed" || e.Source != source || e.To != "orders" || e.OrderingKey != "k" ||
			!maps.Equal(e.Headers, map[string]string{"traceparent": "00-1"}) || time.Since(e.Time) > time.Hour {
			t.Errorf("the event is %+v", e)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint("[", ids, "]") {
		t.Errorf("billing got %v, want %s", got, ids)
	}
	if dead := db.Text(t, `SELECT concat(count(*), ' ', min(task_type), ' ', min(priority), ' ', max(max_attempts))
		FROM outbox.dead_task`); dead != "3 order.placed/search -2 3" {
		t.Errorf("dead letters: %s", dead)
	}
	if s := all["billing"].Stats(); s.Published != 3 || all["search"].Stats().Permanent != 3 {
		t.Errorf("%+v, %+v", s, all["search"].Stats())
	}
}

// An event without a route is a dead letter. A Publisher that breaks its contract fails the batch:
// nothing counts as published.
func TestWhatCannotBePublishedIsADeadLetter(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	forward.Register(reg, placed, short{}, forward.HandlerOptions(handlers.MaxAttempts(1)),
		forward.Route(func(_ context.Context, e *forward.Event) (string, error) {
			if string(e.Data) == `{"n": 2}` {
				return "", forward.Permanent(errors.New("no such customer"))
			}
			return map[string]string{`{"n": 0}`: "orders"}[string(e.Data)], nil
		}))
	enqueue(t, db, 3, nil)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	forwardtest.NothingLeft(t, db)
	got := db.Text(t, `SELECT string_agg(last_error, ' ' ORDER BY task_id) FROM outbox.dead_task`)
	for _, want := range []string{"returned 7 errors for 1 events", "the route of event", "no such customer"} {
		if !strings.Contains(got, want) {
			t.Errorf("dead letters: %s, want %s", got, want)
		}
	}
}

// A subject or a route that cannot be found now, as its database does not answer, costs an attempt
// and no more.
func TestASubjectOrARouteThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(func(context.Context, *forward.Event) (string, error)) forward.Option{
		"Subject": forward.Subject, "Route": forward.Route,
	} {
		db, to, reg, calls := relaytest.NewDatabase(t), &broker{}, handlers.New(), atomic.Int64{}
		lookUp := option(func(ctx context.Context, _ *forward.Event) (string, error) {
			if _, limited := ctx.Deadline(); !limited {
				t.Errorf("%s: the context has no end", name)
			}
			if calls.Add(1) == 1 {
				return "", errors.New("the table of endpoints does not answer")
			}
			return "orders", nil
		})
		f := forward.Register(reg, placed, to, lookUp,
			forward.HandlerOptions(handlers.Retention(time.Hour), relaytest.RetrySoon()))
		enqueue(t, db, 1, nil)
		relaytest.Run(t, db.DB, reg, relay.Config{})
		forwardtest.NothingLeft(t, db)
		if got := db.Text(t, doneSQL); got != "1 2" || len(to.received()) != 1 || f.Stats().Temporary != 1 {
			t.Errorf("%s: done and attempts %s, %d events, %+v", name, got, len(to.received()), f.Stats())
		}
	}
}

type short struct{}

func (short) Publish(context.Context, []*forward.Event) []error { return make([]error, 7) }

func TestMistakesAreNoticedAtRegistration(t *testing.T) {
	t.Parallel()
	with := func(o forward.Option) func() {
		return func() { forward.Register(handlers.New(), placed, &broker{}, o) }
	}
	to := func(target forward.Target, opts ...forward.Option) func() {
		return func() { forward.Fanout(handlers.New(), placed, map[string]forward.Target{"a": target}, opts...) }
	}
	for says, register := range map[string]func(){
		"the Publisher of order.placed is nil":   func() { forward.Register(handlers.New(), placed, nil) },
		"the Publisher of order.placed/a is nil": to(forward.Target{}),
		"Source: it is empty":                    func() { forward.Source("") },
		"Type: it is empty":                      func() { forward.Type("") },
		"To: the template is empty":              func() { forward.To("") },
		"unknown placeholder {tenant}":           func() { forward.To("{tenant}") },
		"Subject: the function is nil":           func() { forward.Subject(nil) },
		"Route: the function is nil":             func() { forward.Route(nil) },
		"has a target without a name": func() {
			forward.Fanout(handlers.New(), placed, map[string]forward.Target{"": {Publisher: &broker{}}})
		},
		"Fanout of order.placed has no targets": func() { forward.Fanout(handlers.New(), placed, nil) },
		"Timeout(1m0s): must be":                func() { forward.Timeout(time.Minute) },
		"size 10001: must be":                   with(forward.BatchSize(10_001)),
		"order.placed: Option 0 is nil":         with(nil),
		"order.placed: an Option is nil":        with(forward.HandlerOptions(nil)),
		"TaskOptions: Option 0 is nil":          to(forward.Target{Publisher: &broker{}}, forward.TaskOptions(nil)),
		"TaskOptions are for Fanout":            with(forward.TaskOptions(outbox.Priority(1))),
		"order.placed: Option 1 is nil":         to(forward.Target{Publisher: &broker{}}, forward.To("x"), nil),
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, says) {
					t.Errorf("the panic is %q, want %q", got, says)
				}
			}()
			register()
		}()
	}
}
