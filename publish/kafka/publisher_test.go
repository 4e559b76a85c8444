package outboxkafka_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
	"github.com/txoutbox/outbox/relay"
)

func event(id string) *forward.Event {
	return &forward.Event{ID: id, Source: "/shop", Type: "order.placed", Key: "c1", Time: time.Unix(1e9, 0),
		Headers: map[string]string{"traceparent": "00-1"}, Data: []byte(`{"n": 1}`), To: topic, Attempt: 1}
}

func TestAnEventArrivesWithItsAttributes(t *testing.T) {
	t.Parallel()
	address, name := realTopic(t)
	if address == "" {
		address, name = newBroker(t, nil).url(), topic
	}
	p := connect(t, address)
	forwardtest.Must(t, p.Ready(t.Context()))
	with, without := event("7"), event("8")
	with.To, without.To, without.Key = name, name, ""
	if errs := p.Publish(t.Context(), []*forward.Event{with, without}); errs != nil {
		t.Fatal(errs)
	}
	got := records(t, address, name, 2)
	for _, r := range got {
		want := map[string]string{"content-type": "application/json", "ce_specversion": "1.0", "ce_source": "/shop", "ce_type": "order.placed",
			"ce_time": "2001-09-09T01:46:40Z", "traceparent": "00-1", "ce_partitionkey": "c1"}
		if header(r, "ce_id") == "8" {
			want["ce_partitionkey"] = ""
		}
		for name, value := range want {
			if got := header(r, name); got != value {
				t.Errorf("event %s: %s: %q, want %q", header(r, "ce_id"), name, got, value)
			}
		}
		if string(r.Key) != want["ce_partitionkey"] || string(r.Value) != `{"n": 1}` || time.Since(r.Timestamp) > time.Hour {
			t.Errorf("event %s: key %q, value %s, time %v", header(r, "ce_id"), r.Key, r.Value, r.Timestamp)
		}
	}
}

// What can never be published is permanent, a topic that is missing is at fault itself, and their
// neighbours are published: also where the broker refuses the batch.
func TestPermanentErrors(t *testing.T) {
	t.Parallel()
	b := newBroker(t, map[string]string{"message.max.bytes": "10000"})
	p := connect(t, b.url())
	with := func(id string, change func(*forward.Event)) *forward.Event {
		e := event(id)
		change(e)
		return e
	}
	pad := func(n int) func(*forward.Event) { // of random text, as batches are compressed
		text := make([]byte, n/2)
		for i := range text {
			text[i] = byte(rand.IntN(256))
		}
		return func(e *forward.Event) { e.Data = []byte(`"` + hex.EncodeToString(text) + `"`) }
	}
	events := []*forward.Event{
		event("1"),
		with("too large for the client", pad(2_000_000)),
		with("too large for the broker", pad(20_000)),
		with("without a topic", func(e *forward.Event) { e.To = "nowhere" }),
		event("2"),
	}
	errs := p.Publish(t.Context(), events)
	if errs == nil {
		t.Fatal("all were published")
	}
	for i, e := range events {
		want := "the event's, for good"
		switch e.ID {
		case "1", "2":
			want = "none"
		case "without a topic":
			want = "the target's"
		}
		if got := forwardtest.Fault(errs[i]); got != want {
			t.Errorf("%s: %s, want %s: %v", e.ID, got, want, errs[i])
		}
	}
	if got := len(records(t, b.url(), topic, 2)); got != 2 {
		t.Errorf("%d records, want 2", got)
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

func TestABrokerThatIsDownIsUnavailable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	url := b.url()
	b.stop()
	p := connect(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if p.Ready(ctx) == nil {
		t.Error("ready without a broker")
	}
	wantUnavailable(t, p.Publish(ctx, []*forward.Event{event("1")}))
	b.start()
	relaytest.Eventually(t, time.Minute, "the publisher to be ready", func() bool { return p.Ready(t.Context()) == nil })
	if errs := p.Publish(t.Context(), []*forward.Event{event("2")}); errs != nil {
		t.Error(errs)
	}
	p.Close()
	p.Close()
	wantUnavailable(t, p.Publish(t.Context(), []*forward.Event{event("3")}))
	if p.Ready(t.Context()) == nil {
		t.Error("ready after Close")
	}
}

// The broker has stored an event, and the connection breaks before the acknowledgement: the client
// sends it again, and it is stored once.
func TestALostAcknowledgementStoresNothingTwice(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	p := connect(t, b.url())
	if errs := p.Publish(t.Context(), []*forward.Event{event("0")}); errs != nil {
		t.Fatal(errs)
	}
	var lost atomic.Int64
	b.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		if lost.Add(1) == 1 {
			b.KeepControl()
			return nil, errors.New("the connection breaks"), true
		}
		return nil, nil, false
	})
	if errs := p.Publish(t.Context(), []*forward.Event{event("1"), event("2")}); errs != nil {
		t.Fatal(errs)
	}
	if got := len(records(t, b.url(), topic, 3)); got != 3 || lost.Load() == 0 {
		t.Errorf("%d records, want 3; %d connections broke", got, lost.Load())
	}
}

func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	url := b.url()
	b.stop()
	p := connect(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	errs := p.Publish(ctx, []*forward.Event{event("1")})
	if len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("got %v, want context.Canceled", errs)
	}
}

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "kafka://", "localhost", "localhost:9092,", ":9092"} {
		if p, err := outboxkafka.Connect(url, outboxkafka.Config{}); err == nil {
			p.Close()
			t.Errorf("%q connects", url)
		}
	}
}

// A broker that is away, for a minute with OUTBOX_TEST_LONG=1, costs no attempt: all events are
// published with the first.
func TestAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	url := b.url()
	b.stop()
	noAttemptWhile(t, url, func(f *forward.Forwarder) {
		forwardtest.Outage(t, f)
		b.start()
	})
}

// noAttemptWhile publishes ten events by a relay while something is wrong, until wrong returns: each
// is published with its first attempt.
func noAttemptWhile(t *testing.T, url string, wrong func(*forward.Forwarder)) {
	t.Helper()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, forwardtest.Placed, connect(t, url), forward.To(topic), forward.Timeout(time.Second),
		forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	forwardtest.Enqueue(t, db, 0, 10, 10)
	relaytest.Run(t, db.DB, reg, relay.Config{})
	wrong(f)
	forwardtest.NothingLeft(t, db)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "10 1" {
		t.Errorf("done tasks and attempts: %s, want 10 1", got)
	}
}

// What an operator mends costs attempts, and makes no dead letter within the time of the retries: each
// event arrives, those of a key in order.
func TestWhatIsMendedLateLosesNothing(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]func(b *broker) (mend func()){
		"a topic": func(b *broker) func() {
			forwardtest.Must(t, b.DeleteTopic(topic))
			return func() { forwardtest.Must(t, b.CreateTopic(topic, 4, nil)) }
		},
		"a right": func(b *broker) func() {
			return b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed, Count: -1}).Remove
		},
		"a full disk": func(b *broker) func() {
			return b.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.KafkaStorageError, Count: -1}).Remove
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const events, keys = 50, 5
			b, db, reg := newBroker(t, nil), relaytest.NewDatabase(t), handlers.New()
			mend := wrong(b)
			f := forward.Register(reg, forwardtest.Placed, connect(t, b.url()), forward.To(topic), forward.Handler(handlers.Keep(time.Hour)))
			forwardtest.Enqueue(t, db, 0, events, keys)
			relaytest.Run(t, db.DB, reg, relay.Config{})
			relaytest.Eventually(t, time.Minute, "the relay to notice", func() bool { return f.Stats().Temporary > keys })
			if err := f.Health(); err == nil || !strings.Contains(err.Error(), topic) {
				t.Errorf("Health: %v", err)
			}
			mend()
			forwardtest.NothingLeft(t, db)
			forwardtest.Check(t, received(t, b, events), events, keys, false)
			if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
				t.Errorf("%d dead letters: %s", n, db.Text(t, `SELECT min(last_error) FROM outbox.dead_task`))
			}
		})
	}
}

// Relays are killed 20 times and the broker is stopped 3 times while 2,000 events of 50 keys are
// published: each arrives, and those of a key in their order.
func TestTheEventsOfAKeyArriveInOrderThroughKills(t *testing.T) {
	t.Parallel()
	const events, keys, kills, stops = 2000, 50, 20, 3
	b, db := newBroker(t, nil), relaytest.NewDatabase(t)
	relays := forwardtest.Start(t, db, 2, b.url(), topic)
	for i := range kills {
		forwardtest.Enqueue(t, db, i*events/kills, events/kills, keys)
		forwardtest.AtMost(t, db, events/kills/2+events/kills/4*(i%3)) // in the middle of the work
		if i%(kills/stops) == 3 {
			b.stop()
		}
		relays.Kill()
		if b.Cluster == nil {
			b.start()
		}
	}
	forwardtest.NothingLeft(t, db)
	forwardtest.Check(t, received(t, b, events), events, keys, false)
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 0 {
		t.Errorf("%d dead letters: %s", n, db.Text(t, `SELECT min(last_error) FROM outbox.dead_task`))
	}
}

func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")

	publisher, err := outboxkafka.Connect("localhost:9092", outboxkafka.Config{Options: []kgo.Opt{kgo.ClientID("shop")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders"))
	// relay.New(db, reg, …) and Run
}
