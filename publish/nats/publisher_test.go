package outboxnats_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

func event(id string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop", Type: "order.placed", Key: "c1", Subject: "s", Time: time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1", "Nats-Msg-Id": "forged"}, Data: []byte(`{"n": 1}`), To: "orders.placed", Attempt: 1}
}

func ready(t *testing.T, p *outboxnats.Publisher) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "the publisher to be ready", func() bool { return p.Ready(t.Context()) == nil })
}

func TestAnEventArrivesWithItsAttributes(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream(nil)
	p := connect(t, b.url())
	ready(t, p)
	if errs := p.Publish(t.Context(), []*forward.Event{event("7")}); errs != nil {
		t.Fatal(errs)
	}
	got := b.messages()
	if len(got) != 1 {
		t.Fatalf("%d messages", len(got))
	}
	m := got[0]
	if m.Subject() != "orders.placed" || string(m.Data()) != `{"n": 1}` {
		t.Errorf("%s %s", m.Subject(), m.Data())
	}
	for name, want := range map[string]string{"Nats-Msg-Id": "7", "Content-Type": "application/json", "ce-specversion": "1.0", "ce-id": "7", "ce-source": "/shop",
		"ce-type": "order.placed", "ce-subject": "s", "ce-partitionkey": "c1", "ce-time": "2001-09-09T01:46:40Z", "traceparent": "00-1"} {
		if got := m.Headers().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestAnEventThatIsPublishedAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream(nil)
	p := connect(t, b.url())
	ready(t, p)
	for range 3 {
		if errs := p.Publish(t.Context(), []*forward.Event{event("7"), event("8")}); errs != nil {
			t.Fatal(errs)
		}
	}
	if got := len(b.messages()); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

// What can never be published is permanent, and its neighbours are published.
func TestPermanentErrors(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.options.MaxPayload = 10_000
	b.stop()
	b.start()
	b.stream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 5000 })
	p := connect(t, b.url())
	ready(t, p)
	with := func(id string, change func(*forward.Event)) *forward.Event {
		e := event(id)
		change(e)
		return e
	}
	pad := func(n int) func(*forward.Event) {
		return func(e *forward.Event) { e.Data = []byte(`"` + strings.Repeat("x", n) + `"`) }
	}
	events := []*forward.Event{
		event("1"),
		with("too large for the server", pad(20_000)),
		with("too large for the stream", pad(6_000)),
		with("too long a subject", func(e *forward.Event) { e.To = "orders." + strings.Repeat("x", 5000) }),
		with("with a line break", func(e *forward.Event) { e.To = "orders.x\ny" }),
		with("a header that is no token", func(e *forward.Event) { e.Headers = map[string]string{"trace id": "1"} }),
		with("a header with a colon", func(e *forward.Event) { e.Headers = map[string]string{"a:b": "1"} }),
		with("a header that is not ASCII", func(e *forward.Event) { e.Headers = map[string]string{"größe": "1"} }),
		with("a header without a name", func(e *forward.Event) { e.Headers = map[string]string{"": "1"} }),
		with("a header with a line break", func(e *forward.Event) { e.Headers = map[string]string{"a": "1\r\nb: 2"} }),
		with("headers of over 64 KiB", func(e *forward.Event) { e.Headers = map[string]string{"a": strings.Repeat("x", 70_000)} }),
		with("with spaces", func(e *forward.Event) { e.To = "orders. placed" }),
		with("with a wildcard", func(e *forward.Event) { e.To = "orders.*" }),
		with("with an empty word", func(e *forward.Event) { e.To = "orders..placed" }),
		event("2"),
	}
	errs := p.Publish(t.Context(), events)
	for i, e := range events {
		neighbour := e.ID == "1" || e.ID == "2"
		if neighbour && errs[i] != nil || !neighbour && !forward.IsPermanent(errs[i]) {
			t.Errorf("%s: %v", e.ID, errs[i])
		}
	}
	if got := len(b.messages()); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

func wantTargetUnavailable(t *testing.T, errs []error) {
	t.Helper()
	if len(errs) == 0 {
		t.Fatal("it was published")
	}
	for _, err := range errs {
		_, broker := forward.IsUnavailable(err)
		if _, yes := forward.IsTargetUnavailable(err); !yes || broker || forward.IsPermanent(err) {
			t.Errorf("got %v, want an error that says that the target is unavailable", err)
		}
	}
}

func wantUnavailable(t *testing.T, errs []error) {
	t.Helper()
	if len(errs) == 0 {
		t.Fatal("it was published")
	}
	for _, err := range errs {
		if _, yes := forward.IsUnavailable(err); !yes || forward.IsPermanent(err) {
			t.Errorf("got %v, want an error that says unavailable", err)
		}
	}
}

func TestAFullStreamIsAnUnavailableTargetUntilItHasSpace(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	s := b.stream(func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	p := connect(t, b.url())
	ready(t, p)
	if errs := p.Publish(t.Context(), []*forward.Event{event("1")}); errs != nil {
		t.Fatal(errs)
	}
	wantTargetUnavailable(t, p.Publish(t.Context(), []*forward.Event{event("2")}))
	forwardtest.Must(t, s.Purge(t.Context()))
	if errs := p.Publish(t.Context(), []*forward.Event{event("2")}); errs != nil {
		t.Error(errs)
	}
}

func TestAServerThatIsDownIsUnavailable(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream(nil)
	b.stop()
	p := connect(t, b.url())
	if p.Ready(t.Context()) == nil {
		t.Error("ready without a server")
	}
	wantUnavailable(t, p.Publish(t.Context(), []*forward.Event{event("1")}))
	b.start()
	ready(t, p)
	if errs := p.Publish(t.Context(), []*forward.Event{event("1")}); errs != nil {
		t.Error(errs)
	}
	p.Close()
	p.Close()
	wantUnavailable(t, p.Publish(t.Context(), []*forward.Event{event("2")}))
	if p.Ready(t.Context()) == nil {
		t.Error("ready after Close")
	}
}

func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	b.stream(nil)
	p := connect(t, b.url())
	ready(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range p.Publish(ctx, []*forward.Event{event("1")}) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	}
}

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	if p, err := outboxnats.Connect("nats://user:secret@%zz", outboxnats.Config{}); err == nil {
		p.Close()
		t.Error("it connects")
	} else if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error has the password: %v", err)
	}
}

// A broker that is away, for a minute with OUTBOX_TEST_LONG=1, costs no attempt: all events are
// published with the first.
func TestAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b, db, reg := newBroker(t), relaytest.NewDatabase(t), handlers.New()
	b.stream(nil)
	b.stop()
	f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.Source(forwardtest.Source), forward.To("orders.placed"),
		forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	forwardtest.Enqueue(t, db, 0, 10, 10)
	leaves(relaytest.Run(t, db.DB, reg, relay.Config{}))
	forwardtest.Outage(t, f)
	b.start()
	forwardtest.NothingLeft(t, db)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "10 1" {
		t.Errorf("done tasks and attempts: %s, want 10 1", got)
	}
}

// leaves lets the client keep its goroutines that the first call of Publish has started.
func leaves(r *relaytest.Running) {
	for _, function := range []string{"(*Conn).waitForMsgs", "resetPendingAcksOnReconnect"} {
		r.Leaves(function)
	}
}

// A subject without a stream waits for its stream, which may come later than the event.
func TestAnEventWithoutAStreamWaitsForIt(t *testing.T) {
	t.Parallel()
	b, db, reg := newBroker(t), relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.To("orders.placed"), forward.Handler(relaytest.RetrySoon()))
	forwardtest.Enqueue(t, db, 0, 3, 3)
	leaves(relaytest.Run(t, db.DB, reg, relay.Config{}))
	relaytest.Eventually(t, time.Minute, "an attempt", func() bool { return f.Stats().Temporary > 0 })
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), "orders.placed") || !strings.Contains(err.Error(), "no stream takes the subject") {
		t.Errorf("health: %v", err)
	}
	b.stream(nil)
	forwardtest.NothingLeft(t, db)
	if got := len(b.messages()); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
}

// Relays are killed 20 times and the server is stopped 3 times while 2,000 events of 50 keys are
// published: each arrives once, and those of a key in their order.
func TestEachEventOfAKeyArrivesOnceAndInOrderThroughKills(t *testing.T) {
	t.Parallel()
	const events, keys, kills, stops = 2000, 50, 20, 3
	b, db := newBroker(t), relaytest.NewDatabase(t)
	b.stream(nil)
	relays := forwardtest.Start(t, db, 2, b.url(), "orders.placed")
	for i := range kills {
		forwardtest.Enqueue(t, db, i*events/kills, events/kills, keys)
		forwardtest.AtMost(t, db, events/kills/2+events/kills/4*(i%3)) // in the middle of the work
		if i%(kills/stops) == 3 {
			b.stop()
		}
		relays.Kill()
		if b.s == nil {
			b.start()
		}
	}
	forwardtest.NothingLeft(t, db)
	forwardtest.Check(t, b.received(), events, keys, true)
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}
