package outboxwatermill

import (
	"bytes"
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
)

// newMessage is the message of an event. Watermill may keep it, so the data is a copy.
func (c *Config) newMessage(ctx context.Context, e *forward.Event) *message.Message {
	m := message.NewMessage(e.ID, bytes.Clone(e.Data))
	m.SetContext(ctx)
	for _, h := range e.CloudEvents("ce_") {
		m.Metadata.Set(h.Name, h.Value)
	}
	m.Metadata.Set("content_type", forward.ContentType)
	if e.OrderingKey != "" {
		m.Metadata.Set(c.KeyName, e.OrderingKey)
	}
	return m
}

// group is the events of one topic, in their order.
type group struct {
	topic    string
	events   []int
	messages []*message.Message
	settled  bool // by a result
}

// groups are the events by topic, in the order of the topics' first events.
func (c *Config) groups(ctx context.Context, events []*forward.Event) (all []*group) {
	of := map[string]*group{}
	for i, e := range events {
		g := of[e.To]
		if g == nil {
			g = &group{topic: e.To}
			of[e.To], all = g, append(all, g)
		}
		g.events, g.messages = append(g.events, i), append(g.messages, c.newMessage(ctx, e))
	}
	return all
}

// settle is the result of the group's events.
func (g *group) settle(errs []error, err error) {
	for _, i := range g.events {
		errs[i] = err
	}
}
