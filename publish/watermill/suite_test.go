package outboxwatermill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
)

var (
	errDown    = errors.New("down")
	errRefused = errors.New("refused")
	errUnready = errors.New("unready")
)

func classify(err error) error {
	switch {
	case errors.Is(err, errDown):
		return forward.Unavailable(err, 0)
	case errors.Is(err, errRefused):
		return forward.Permanent(err)
	case errors.Is(err, errUnready):
		return forward.TargetUnavailable(err, 0)
	}
	return err
}

// bad is the payload of a message that no broker takes.
const bad = `{"n": -1}`

// broker is behind a pubsub, and stores what it gets while it is up.
type broker struct {
	mu     sync.Mutex
	stored []forwardtest.Received
	down   error         // that of a broker that is down
	mute   error         // the result of what is stored
	going  chan struct{} // closed unless calls are held back
	held   chan struct{} // gets a value when one is held back
}

func (b *broker) answer(topic string, messages []*message.Message) error {
	b.mu.Lock()
	going := b.going
	b.mu.Unlock()
	select {
	case <-going:
	default:
		select {
		case b.held <- struct{}{}:
		default:
		}
		<-going
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.down != nil:
		return b.down
	case topic != "orders":
		return map[string]error{"refused": errRefused, "unready": errUnready}[topic]
	case slices.ContainsFunc(messages, func(m *message.Message) bool { return string(m.Payload) == bad }):
		return errRefused // the others, too
	}
	for _, m := range messages {
		b.stored = append(b.stored, forwardtest.Received{Key: m.Metadata.Get("key"), ID: m.UUID,
			ContentType: m.Metadata.Get("content_type"), Headers: m.Metadata, Data: m.Payload})
	}
	return b.mute
}

// set changes a field under the lock.
func set[T any](b *broker, field *T, value T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*field = value
}

func newBroker() *broker {
	b := &broker{going: make(chan struct{}), held: make(chan struct{}, 1)}
	close(b.going)
	return b
}

func open(t testing.TB, client message.Publisher, c outboxwatermill.Config) *outboxwatermill.Publisher {
	t.Helper()
	p, err := outboxwatermill.New(client, c)
	forwardtest.Must(t, err)
	return p
}

func TestAsAllPublishers(t *testing.T) {
	t.Parallel()
	to := func(topic string) func(*forward.Event) { return func(e *forward.Event) { e.To = topic } }
	suite := forwardtest.Suite{
		New: func(testing.TB) *forwardtest.Broker {
			b, released := newBroker(), make(chan struct{})
			config := outboxwatermill.Config{KeyName: "key", Classify: classify, Ready: func(context.Context) error {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.down
			}}
			return &forwardtest.Broker{
				To: "orders",
				Open: func(t testing.TB) forwardtest.Publisher {
					p := open(t, &pubsub{answer: b.answer}, config)
					t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
					return p
				},
				Received: func(testing.TB, int) []forwardtest.Received {
					b.mu.Lock()
					defer b.mu.Unlock()
					return slices.Clone(b.stored)
				},
				Stop:    func() { set(b, &b.down, errDown) },
				Start:   func() { set(b, &b.down, nil) },
				Hold:    func() <-chan struct{} { set(b, &b.going, released); return b.held },
				Release: func() { close(released) },
				LoseReplies: func() (restore func()) {
					set(b, &b.mute, errDown)
					return func() { set(b, &b.mute, nil) }
				},
			}
		},
		Prefix: "ce_",
		Refused: map[string]func(*forward.Event){"a topic that takes nothing": to("refused"),
			"a message that is refused": func(e *forward.Event) { e.Data = []byte(bad) }},
		Unready: map[string]func(*forward.Event){"a topic that takes nothing now": to("unready")},
	}
	suite.Run(t)
}

func TestEventsAreGroupedByTopicInTheirOrder(t *testing.T) {
	t.Parallel()
	ps := &pubsub{answer: func(string, []*message.Message) error { return nil }}
	p := open(t, ps, outboxwatermill.Config{})
	defer p.Close()
	forwardtest.Publish(t, p, to("b", "a", "b", "b", "a")...)
	var calls []string
	for _, c := range ps.all() {
		call := c.topic
		for _, m := range c.messages {
			call += fmt.Sprint(" ", m.UUID)
		}
		calls = append(calls, call)
	}
	slices.Sort(calls)
	if got := strings.Join(calls, "|"); got != "a 1 4|b 0 2 3" {
		t.Errorf("the calls are %s", got)
	}
}

func TestAPublisherNeedsAClient(t *testing.T) {
	t.Parallel()
	if p, err := outboxwatermill.New(nil, outboxwatermill.Config{}); err == nil || p != nil {
		t.Errorf("got %v, %v", p, err)
	}
}

func TestMain(m *testing.M) { relaytest.Main(m) }

// pubsub is a message.Publisher that keeps what it gets. answer decides on each call.
type pubsub struct {
	answer func(topic string, messages []*message.Message) error

	mu   sync.Mutex
	sent []sent
}

type sent struct {
	topic    string
	messages []*message.Message
}

func (p *pubsub) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	p.sent = append(p.sent, sent{topic, messages})
	p.mu.Unlock()
	return p.answer(topic, messages)
}

func (p *pubsub) Close() error { return errors.New("closed by someone else") }

func (p *pubsub) all() []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

// to are events with the ids 0 and on, to these topics.
func to(topics ...string) (all []*forward.Event) {
	for i, topic := range topics {
		all = append(all, &forward.Event{ID: fmt.Sprint(i), Source: "/shop", Type: "order.placed", To: topic,
			Data: []byte("{}"), Attempt: 1})
	}
	return all
}
