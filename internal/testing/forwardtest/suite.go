package forwardtest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Publisher is the form of a Publisher of each module.
type Publisher interface {
	forward.Publisher
	Ready(ctx context.Context) error
	io.Closer
}

// Broker is a broker, or a place on a shared one, that one test has for itself.
type Broker struct {
	URL      string
	Of       any    // what Mended.Break gets
	To       string // the destination of events
	Open     func(t testing.TB) Publisher
	Received func(t testing.TB, least int) []Received // waits until so many have arrived

	Stop, Start func()                 // no connection meanwhile
	Hold        func() <-chan struct{} // holds back what the publisher sends; the channel tells when
	Release     func()
	LoseReplies func() (restore func())
}

// Suite has the properties that tests of all publishers share.
type Suite struct {
	New    func(t testing.TB) *Broker
	Prefix string // of the attributes
	Once   bool   // the broker stores a repetition once
	// Refused changes an event into one that can never be published, Unready into one whose target is
	// at fault.
	Refused, Unready map[string]func(*forward.Event)
	// Mended are faults that cost attempts until they are mended: before the relay runs. says is a
	// part of the reason in Health.
	Mended map[string]Mended
	// Kills runs relays in processes that are killed, for which TestMain calls Main.
	Kills bool
	// Leaves are functions of goroutines that the first Publish starts and Close ends.
	Leaves []string
}

// Mended is a fault of a broker that somebody mends.
type Mended struct {
	Break func(t testing.TB, of any) (mend func())
	Says  string
}

// Event is an event to a destination.
func Event(id, to string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop", Type: "order.placed", OrderingKey: "c1", Subject: "order/9",
		Time:    time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1"}, Data: []byte(`{"n": 1}`), To: to, Attempt: 1}
}

// Run runs the tests of the suite.
func (s *Suite) Run(t *testing.T) {
	tests := map[string]func(*testing.T, *Broker){
		"an event arrives with its attributes": s.arrives, "refused events leave their neighbours alone": s.refuses,
		"a broker that is down is unavailable": s.isDown, "Publish ends with its context": s.endsWithContext,
		"Close waits for what is in flight": s.closes, "a lost reply": s.losesReply,
		"an outage costs no attempt": s.outage,
	}
	if s.Kills {
		tests["events of a key arrive in order through kills"] = s.kills
	}
	for what, fault := range s.Mended {
		tests["what is mended late loses nothing: "+what] = func(t *testing.T, b *Broker) { s.mends(t, b, fault) }
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s.New(t))
		})
	}
}

// Ready waits until the publisher can be used.
func Ready(t testing.TB, p Publisher) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "the publisher to be ready",
		func() bool { return p.Ready(t.Context()) == nil })
}

// Unavailable checks that each of n errors is the broker's.
func Unavailable(t testing.TB, errs []error, n int) {
	t.Helper()
	if len(errs) != n {
		t.Fatalf("%d errors, want %d", len(errs), n)
	}
	for _, err := range errs {
		if Fault(err) != "the broker's" {
			t.Errorf("%s: %v, want an error of the broker", Fault(err), err)
		}
	}
}

// Publish publishes events, without an error.
func Publish(t testing.TB, p forward.Publisher, events ...*forward.Event) {
	t.Helper()
	Must(t, errors.Join(p.Publish(Within(t, time.Minute), events)...))
}

// Within is a context that ends after d, or with the test.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func (s *Suite) arrives(t *testing.T, b *Broker) {
	p := b.Open(t)
	Ready(t, p)
	with, without := Event("7", b.To), Event("8", b.To)
	with.Headers["CE_id"], with.Headers["cloudevents_id"] = "forged", "forged"
	without.OrderingKey, without.Subject = "", ""
	for _, e := range []*forward.Event{with, without} {
		if strings.EqualFold(s.Prefix, "ce-") {
			e.Headers = Event("", "").Headers
		}
		Publish(t, p, e)
	}
	got := b.Received(t, 2)
	if len(got) != 2 {
		t.Fatalf("%d events arrived", len(got))
	}
	for i, e := range []*forward.Event{with, without} {
		r := got[slices.IndexFunc(got, func(r Received) bool { return r.ID == e.ID })]
		if r.Key != e.OrderingKey || string(r.Data) != string(e.Data) {
			t.Errorf("event %d: %+v", i, r)
		}
		for _, h := range e.CloudEvents(s.Prefix) {
			if r.Headers[h.Name] != h.Value {
				t.Errorf("event %d: %s: %q, want %q", i, h.Name, r.Headers[h.Name], h.Value)
			}
			delete(r.Headers, h.Name)
		}
		for name := range r.Headers {
			if strings.HasPrefix(strings.ToLower(name), strings.ToLower(s.Prefix)) {
				t.Errorf("event %d: it has the attribute %s", i, name)
			}
		}
		if r.ContentType != forward.ContentType {
			t.Errorf("event %d: content type %q", i, r.ContentType)
		}
	}
}

func (s *Suite) refuses(t *testing.T, b *Broker) {
	p := b.Open(t)
	Ready(t, p)
	keyless := func(id string) *forward.Event { // in one batch, and no key is held up
		e := Event(id, b.To)
		e.OrderingKey = ""
		return e
	}
	events, want := []*forward.Event{keyless("first")}, []string{"none"}
	for fault, changes := range map[string]map[string]func(*forward.Event){"the event's, for good": s.Refused,
		"the target's": s.Unready} {
		for what, change := range changes {
			e := keyless(what)
			change(e)
			events, want = append(events, e), append(want, fault)
		}
	}
	events, want = append(events, keyless("last")), append(want, "none")
	errs := p.Publish(Within(t, time.Minute), events)
	if len(errs) != len(events) {
		t.Fatalf("%d errors of %d events", len(errs), len(events))
	}
	for i, e := range events {
		if got := Fault(errs[i]); got != want[i] {
			t.Errorf("%.50s: %s, want %s: %v", e.ID, got, want[i], errs[i])
		}
	}
	if got := arrived(b.Received(t, 2)); got != "first last" {
		t.Errorf("arrived: %s", got)
	}
}

// arrived are the ids of what has arrived, in their order, each once.
func arrived(all []Received) string {
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " ")
}

func (s *Suite) isDown(t *testing.T, b *Broker) {
	b.Stop()
	p := b.Open(t)
	if p.Ready(Within(t, time.Second)) == nil {
		t.Error("ready without a broker")
	}
	Unavailable(t, p.Publish(Within(t, time.Second), []*forward.Event{Event("1", b.To)}), 1)
	b.Start()
	Ready(t, p)
	Publish(t, p, Event("2", b.To))
	Must(t, errors.Join(p.Close(), p.Close()))
	Unavailable(t, p.Publish(Within(t, time.Minute), []*forward.Event{Event("3", b.To), Event("4", b.To)}), 2)
	if p.Ready(Within(t, time.Minute)) == nil {
		t.Error("ready after Close")
	}
}

// A broker that reads nothing holds up Publish for no longer than its context.
func (s *Suite) endsWithContext(t *testing.T, b *Broker) {
	p := b.Open(t)
	Ready(t, p)
	Publish(t, p, Event("1", b.To))
	b.Hold()
	answer := make(chan []error, 1)
	go func() { answer <- p.Publish(Within(t, 200*time.Millisecond), []*forward.Event{Event("2", b.To)}) }()
	select {
	case errs := <-answer:
		Unavailable(t, errs, 1)
		if !errors.Is(errs[0], context.DeadlineExceeded) {
			t.Errorf("%v does not wrap the error of the context", errs[0])
		}
	case <-time.After(time.Minute):
		t.Error("Publish does not end")
	}
	b.Release()
	relaytest.Eventually(t, time.Minute, "it works again", func() bool {
		return p.Publish(Within(t, time.Minute), []*forward.Event{Event("3", b.To)}) == nil
	})
}

func (s *Suite) closes(t *testing.T, b *Broker) {
	p := b.Open(t)
	Ready(t, p)
	Publish(t, p, Event("1", b.To))
	held := b.Hold()
	published, closed := make(chan []error, 1), make(chan struct{})
	go func() { published <- p.Publish(Within(t, time.Minute), []*forward.Event{Event("2", b.To)}) }()
	<-held
	go func() {
		_ = p.Close()
		close(closed)
	}()
	relaytest.Eventually(t, time.Minute, "later calls are refused", func() bool {
		errs := p.Publish(Within(t, 10*time.Millisecond), []*forward.Event{Event("3", b.To)})
		return errs != nil && strings.Contains(errs[0].Error(), "is closed")
	})
	select {
	case <-closed:
		t.Error("Close did not wait")
	default:
	}
	b.Release()
	Must(t, errors.Join(<-published...))
	<-closed
}

// The broker has an event, and its reply is lost: the event is published again.
func (s *Suite) losesReply(t *testing.T, b *Broker) {
	p := b.Open(t)
	Ready(t, p)
	Publish(t, p, Event("0", b.To))
	restore := b.LoseReplies()
	if errs := p.Publish(Within(t, 2*time.Second), []*forward.Event{Event("1", b.To)}); errs != nil {
		Unavailable(t, errs, 1)
	}
	restore()
	Ready(t, p)
	relaytest.Eventually(t, time.Minute, "it works again", func() bool {
		return p.Publish(Within(t, time.Minute), []*forward.Event{Event("1", b.To), Event("2", b.To)}) == nil
	})
	got := b.Received(t, 3)
	if arrived(got) != "0 1 2" || s.Once && len(got) != 3 {
		t.Errorf("%d events arrived: %s", len(got), arrived(got))
	}
}

// publish publishes n events of so many keys by a relay.
func (s *Suite) publish(t *testing.T, b *Broker, n, keys int, opts ...handlers.Option) (*forward.Forwarder,
	*relaytest.Database) {
	t.Helper()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, Placed, b.Open(t), forward.To(b.To),
		forward.HandlerOptions(append(opts, handlers.Retention(time.Hour))...))
	Enqueue(t, db, 0, n, keys)
	r := relaytest.Prepare(t, db.DB, reg, relay.Config{})
	for _, function := range s.Leaves {
		r.Leaves(function)
	}
	r.Start()
	return f, db
}

// A broker that is away costs no attempt.
func (s *Suite) outage(t *testing.T, b *Broker) {
	b.Stop()
	f, db := s.publish(t, b, 10, 10, handlers.MaxAttempts(1))
	relaytest.Eventually(t, 2*time.Minute, "the relay to notice", func() bool { return f.Stats().Unavailable > 0 })
	b.Start()
	NothingLeft(t, db)
	db.Want(t, "10 1", `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`)
}

// What an operator mends costs attempts and makes no dead letter: each event arrives, those of a
// key in order.
func (s *Suite) mends(t *testing.T, b *Broker, fault Mended) {
	const events, keys = 50, 5
	mend := fault.Break(t, b.Of)
	f, db := s.publish(t, b, events, keys, relaytest.RetrySoon())
	relaytest.Eventually(t, time.Minute, "the relay to notice",
		func() bool { return f.Stats().Temporary > 0 && f.Health() != nil })
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), b.To) ||
		!strings.Contains(err.Error(), fault.Says) {
		t.Errorf("Health: %v", err)
	}
	mend()
	NothingLeft(t, db)
	Check(t, b.Received(t, events), events, keys, s.Once)
	noDeadLetter(t, db)
}

// Relays are killed 20 times and the broker is stopped 3 times while 2,000 events of 50 keys are
// published: each arrives, and those of a key in their order.
func (s *Suite) kills(t *testing.T, b *Broker) {
	const events, keys, kills, stops = 2000, 50, 20, 3
	db := relaytest.NewDatabase(t)
	relays := Start(t, db, 2, b.URL, b.To)
	for i := range kills {
		Enqueue(t, db, i*events/kills, events/kills, keys)
		left := events/kills/2 + events/kills/4*(i%3) // in the middle of the work
		relaytest.Eventually(t, 2*time.Minute, "events to be published", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.task`) <= left
		})
		stop := i%(kills/stops) == 3
		if stop {
			b.Stop()
		}
		relays.Kill()
		if stop {
			b.Start()
		}
	}
	NothingLeft(t, db)
	Check(t, b.Received(t, events), events, keys, s.Once)
	noDeadLetter(t, db)
}

func noDeadLetter(t testing.TB, db *relaytest.Database) {
	t.Helper()
	db.Want(t, "", `SELECT COALESCE(min(last_error), '') FROM outbox.dead_task`)
}
