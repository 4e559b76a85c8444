package outboxwatermill_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/relaytest"
)

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
