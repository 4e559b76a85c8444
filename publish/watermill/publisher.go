package outboxwatermill

import (
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
