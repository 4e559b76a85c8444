package outboxwatermill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/txoutbox/outbox/forward"
)

// mostCalls is how many calls of Publish run at once. It bounds those that hang, as Watermill's
// Publish has no context.
const mostCalls = 64

var errClosed = errors.New("outboxwatermill: the Publisher is closed")

// Publisher is a forward.Publisher for a publisher of Watermill. It is safe for concurrent use.
type Publisher struct {
	to     message.Publisher
	config Config
	calls  chan struct{}

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

var _ forward.Publisher = (*Publisher)(nil)

// New returns a Publisher for p, which stays the app's: Close does not close it. It panics if p is
// nil.
func New(p message.Publisher, c Config) *Publisher {
	if p == nil {
		panic("outboxwatermill: New: the message.Publisher is nil")
	}
	c.setDefaults()
	return &Publisher{to: p, config: c, calls: make(chan struct{}, mostCalls)}
}

// result is what became of the events of one topic.
type result struct {
	of  *group
	err error
}

// Publish publishes events topic by topic, one call of Watermill's Publish for each. It implements
// forward.Publisher; the package says what errors mean. Events of one topic keep their order.
//
// When ctx ends it returns. Topics without a result are forward.Unavailable, and the error wraps
// that of ctx. A call of Watermill's Publish that runs goes on, unless it heeds the context of its
// messages; its events may thus be published after their retry. 64 calls run at once, those that go
// on among them; others wait.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	select {
	case p.calls <- struct{}{}:
	case <-ctx.Done():
		return fill(errs, ended(ctx, "too many calls of Publish hang"))
	}
	groups := p.config.groups(ctx, events)
	results := make(chan result, len(groups)) // has room for all, so the goroutine ends in any case
	if !p.start(func() {
		defer func() { <-p.calls }()
		for _, g := range groups {
			if ctx.Err() != nil {
				return
			}
			results <- result{g, p.publish(g)}
		}
	}) {
		<-p.calls
		return fill(errs, forward.Unavailable(errClosed, 0))
	}
	failed := false
	for n := range groups {
		r, ok := next(ctx, results)
		if !ok {
			failed = true
			for _, g := range groups[n:] {
				g.settle(errs, ended(ctx, "no answer"))
			}
			break
		}
		failed = failed || r.err != nil
		r.of.settle(errs, r.err)
	}
	if !failed {
		return nil
	}
	return errs
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

// publish calls Watermill. A panic is an error, as the relay would make it one in its own goroutine.
func (p *Publisher) publish(g *group) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("outboxwatermill: publish to topic %q: panic: %v", g.topic, r)
		}
	}()
	if err = p.to.Publish(g.topic, g.messages...); err == nil {
		return nil
	}
	if p.config.Classify != nil {
		if marked := p.config.Classify(err); marked != nil {
			err = marked
		}
	}
	return fmt.Errorf("outboxwatermill: publish to topic %q: %w", g.topic, err)
}

// ended is the error of events without a result when ctx has ended.
func ended(ctx context.Context, why string) error {
	return forward.Unavailable(fmt.Errorf("outboxwatermill: %s: %w", why, ctx.Err()), 0)
}

func fill(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// Ready returns nil if the Publisher is open and Config.Ready, if there is one, returns nil.
func (p *Publisher) Ready(ctx context.Context) error {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	switch {
	case closed:
		return errClosed
	case p.config.Ready == nil:
		return nil
	}
	if err := p.config.Ready(ctx); err != nil {
		return fmt.Errorf("outboxwatermill: not ready: %w", err)
	}
	return nil
}

// start runs f in a goroutine that Close waits for, unless Close has begun.
func (p *Publisher) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Go(f)
	return true
}

// Close waits for the calls of Watermill's Publish that run, for as long as they take. Later calls of
// Publish are forward.Unavailable. It may be called several times.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
}
