// Package outboxwatermill publishes events through any publisher of Watermill
// (github.com/ThreeDotsLabs/watermill): its Pub/Subs for brokers, HTTP, SQL or Go channels.
//
//	import outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
//
//	publisher, err := outboxwatermill.New(kafkaPublisher, outboxwatermill.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// Each event is one message. Its topic is the event's To, its payload the event's data.
// Its UUID is the event's id, the same in every attempt. Its metadata are the CloudEvents
// attributes with the prefix "ce_", the headers of the task, content_type, and the ordering key as
// partition_key.
//
// An event counts as published when Watermill's Publish returns nil. With an asynchronous
// publisher, or a Go channel without subscribers, that is before anybody has it: choose one that
// waits for the broker.
//
// Watermill gives one error for all messages of a call, and does not say which were published.
// After an error that Config.Classify does not mark as the topic's or the broker's, the events of
// the topic go one by one, so only the one at fault fails. Some arrive twice. Consumers tell by
// source and id (package inbox).
//
// The topics of a call are published at once, so one that hangs holds up no other.
//
// Watermill does not classify its errors, so each counts as an attempt. An outage that
// outlasts the attempts makes dead letters, unless Config.Classify marks its errors
// [forward.Unavailable].
package outboxwatermill

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/publisher"
)

// Config says how events become messages. It is copied by New; the zero value of a field is its
// default.
type Config struct {
	// KeyName is the name of the metadata with the ordering key, for a marshaler that partitions by
	// it. Events without a key have none. Default "partition_key".
	KeyName string
	// Classify may mark an error of Watermill's publisher with forward.Permanent,
	// forward.TargetUnavailable or forward.Unavailable. It returns the error, marked or not; nil counts
	// as unmarked. It is called by several goroutines at once. Default nil: each error counts as an
	// attempt.
	Classify func(error) error
	// Ready says whether the broker can be used, as Watermill cannot tell. Default nil: it can.
	Ready func(context.Context) error
}

// mostHanging is the number of calls of Watermill's Publish, which have no context, that may hang for
// one topic.
const mostHanging = 4

// hangingPause is how long a topic with so many calls waits.
const hangingPause = 5 * time.Second

// Publisher is a forward.Publisher for a publisher of Watermill. It is safe for concurrent use.
type Publisher struct {
	to     message.Publisher
	config Config
	calls  publisher.Calls

	mu      sync.Mutex
	running map[*group]context.Context // the calls of Watermill's Publish, with the context of each
}

var _ forward.Publisher = (*Publisher)(nil)

// New returns a Publisher for client, which stays the app's: Close does not close it. New refuses a
// nil client.
func New(client message.Publisher, config Config) (*Publisher, error) {
	if client == nil {
		return nil, errors.New("outboxwatermill: the message.Publisher is nil")
	}
	config.KeyName = cmp.Or(config.KeyName, "partition_key")
	return &Publisher{to: client, config: config, running: map[*group]context.Context{}}, nil
}

// result is that of one call of Watermill's Publish.
type result struct {
	of  *group
	err error
}

// Publish publishes the events topic by topic at once, one call of Watermill's Publish for each. It
// implements forward.Publisher; the package has the meaning of errors. Events of one topic keep
// their order. After an error that may be that of one event they go one by one.
//
// When ctx ends it returns. Topics without a result are forward.Unavailable, and the error wraps
// that of ctx. A call of Watermill's Publish that runs goes on, unless it heeds the context of its
// messages; its events may thus be published after their retry. At most 4 calls go on for one topic.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.Closed(events)
	}
	defer p.calls.End()
	errs := make([]error, len(events))
	groups := groups(events)
	results := make(chan result, len(groups)) // has room for all, so each goroutine ends in any case
	running := 0
	start := func(g *group) {
		some := g.next(events, errs)
		if len(some) == 0 {
			return
		}
		messages := make([]*message.Message, len(some))
		for i, e := range some {
			messages[i] = p.config.newMessage(ctx, e)
		}
		running++
		p.calls.Go(func() { results <- result{g, p.call(ctx, g, messages)} })
	}
	for _, g := range groups {
		start(g)
	}
	for running > 0 {
		r, ok := next(ctx, results)
		if !ok {
			break
		}
		running--
		if over := ctx.Err() != nil; over && r.of.splits(r.err) {
			continue // it has no answer, as there is no time for its events one by one
		} else if r.of.settle(events, errs, r.err); !over {
			start(r.of)
		}
	}
	for _, g := range groups {
		if len(g.rest) > 0 {
			g.end(errs, "the time limit", ctx.Err())
			g.settle(events, errs, forward.Unavailable(fmt.Errorf("outboxwatermill: no answer: %w", ctx.Err()), 0))
		}
	}
	return publisher.Result(errs)
}

// next is the next result, unless ctx ends before it is there.
func next(ctx context.Context, results <-chan result) (r result, ok bool) {
	select {
	case r = <-results:
		return r, true
	default:
	}
	select {
	case r = <-results:
		return r, true
	case <-ctx.Done():
		return r, false
	}
}

// call publishes messages to a group's topic, unless too many calls for the topic hang.
func (p *Publisher) call(ctx context.Context, g *group, messages []*message.Message) error {
	if err := p.enter(ctx, g); err != nil {
		return err
	}
	defer p.leave(g)
	return p.publish(g.topic, messages)
}

// enter notes the start of a call, unless too many calls for its topic have outlived their Publish.
func (p *Publisher) enter(ctx context.Context, g *group) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	hanging := 0
	for other, its := range p.running {
		if other.topic == g.topic && its.Err() != nil {
			hanging++
		}
	}
	if hanging >= mostHanging {
		err := fmt.Errorf("outboxwatermill: publish to topic %q: %d calls hang", g.topic, hanging)
		return forward.TargetUnavailable(err, hangingPause) // of no event, so no attempt counts
	}
	p.running[g] = ctx
	return nil
}

// leave notes the end of a call.
func (p *Publisher) leave(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, g)
}

// publish calls Watermill. A panic is an error, as the relay would make it one in its own
// goroutine.
func (p *Publisher) publish(topic string, messages []*message.Message) error {
	var err error
	guard.Do(func() {
		err = p.to.Publish(topic, messages...)
		if err != nil && p.config.Classify != nil {
			err = cmp.Or(p.config.Classify(err), err)
		}
	}, func(panicked error) { err = cmp.Or(panicked, err) })
	if err != nil {
		return fmt.Errorf("outboxwatermill: publish to topic %q: %w", topic, err)
	}
	return nil
}

// Ready returns nil if the Publisher is open and Config.Ready, if there is one, returns nil.
func (p *Publisher) Ready(ctx context.Context) error {
	if !p.calls.Begin() {
		return publisher.ErrClosed
	}
	defer p.calls.End()
	if p.config.Ready == nil {
		return nil
	}
	if err := p.config.Ready(ctx); err != nil {
		return fmt.Errorf("outboxwatermill: not ready: %w", err)
	}
	return nil
}

// Close waits for the calls of Watermill's Publish that run, for as long as they take. Later calls
// of Publish return forward.Unavailable. It may be called several times. Its error is always nil.
func (p *Publisher) Close() error {
	p.calls.Close()
	return nil
}

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
