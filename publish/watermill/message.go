package outboxwatermill

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
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

// group is the events of one topic, in their order. After an error of a call that one of its events
// may have caused, the events go one by one.
type group struct {
	topic  string
	rest   []int // the events without a result
	sent   int   // how many of rest, from the first on, the running call has
	single bool
	held   map[string]error // the keys of events that are to be retried
}

// groups are the events by topic, in the order of the topics' first events.
func groups(events []*forward.Event) (all []*group) {
	of := map[string]*group{}
	for i, e := range events {
		g := of[e.To]
		if g == nil {
			g = &group{topic: e.To, held: map[string]error{}}
			of[e.To], all = g, append(all, g)
		}
		g.rest = append(g.rest, i)
	}
	return all
}

// next are the events of the group's next call; there are none at its end.
func (g *group) next(events []*forward.Event, errs []error) []*forward.Event {
	for g.single && len(g.rest) > 0 {
		first := g.rest[0]
		why := g.held[events[first].OrderingKey]
		if why == nil {
			break
		}
		errs[first], g.rest = notSent("an earlier event of its key failed", why), g.rest[1:]
	}
	if g.sent = len(g.rest); g.single {
		g.sent = min(g.sent, 1)
	}
	out := make([]*forward.Event, g.sent)
	for n, i := range g.rest[:g.sent] {
		out[n] = events[i]
	}
	return out
}

// splits reports whether the events of the group's call go one by one after its error.
func (g *group) splits(err error) bool { return g.sent > 1 && publisher.OfOneEvent(err) }

// settle takes the result of the group's call.
func (g *group) settle(events []*forward.Event, errs []error, err error) {
	if g.splits(err) {
		g.single, g.sent = true, 0
		return
	}
	for _, i := range g.rest[:g.sent] {
		errs[i] = err
		if key := events[i].OrderingKey; err != nil && key != "" && !forward.IsPermanent(err) {
			g.held[key] = err
		}
	}
	g.rest, g.sent = g.rest[g.sent:], 0
	if err != nil && !publisher.OfOneEvent(err) {
		g.end(errs, "the topic or the broker takes nothing", err)
	}
}

// end settles the events that are not sent any more.
func (g *group) end(errs []error, why string, err error) {
	for _, i := range g.rest[g.sent:] {
		errs[i] = notSent(why, err)
	}
	g.rest = g.rest[:g.sent]
}

// notSent has an event come back that was not sent.
func notSent(why string, err error) error {
	return publisher.NotSent(fmt.Errorf("outboxwatermill: not sent: %s: %v", why, err))
}
