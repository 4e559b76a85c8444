package outboxwebhook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/publisher"
)

// defaultWait is the time for which Publish waits for a request. It goes on in the background then.
const defaultWait = time.Second

// errClosed is that of a Publisher after Close.
var errClosed = errors.New("outboxwebhook: the publisher is closed")

// Publisher is a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	config Config
	client *http.Client
	wait   time.Duration // of Publish for a request

	calls publisher.Calls

	mu        sync.Mutex
	endpoints map[string]*endpoint
	late      map[string]*answer // of events whose requests went on in the background
	swept     time.Time          // when forget last ran
}

// answer is the answer to a request in the background.
type answer struct {
	done  bool
	err   error
	until time.Time // it is forgotten then
}

// New makes a Publisher. Its error names each field of the Config that is wrong.
func New(c Config) (*Publisher, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.fill()
	c.Allow, c.Headers = slices.Clone(c.Allow), slices.Clone(c.Headers)
	return &Publisher{
		config: c, client: c.client(nil), wait: defaultWait,
		endpoints: map[string]*endpoint{}, late: map[string]*answer{},
	}, nil
}

// Publish implements forward.Publisher. The package has the meaning of each answer. It waits about
// a second for each request at most.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.All(events, forward.Unavailable(errClosed, 0))
	}
	defer p.calls.End()
	errs := make([]error, len(events))
	deadline := time.Now().Add(p.wait)
	var group sync.WaitGroup
	for i, e := range events {
		group.Go(func() { errs[i] = p.publish(ctx, e, deadline) })
	}
	group.Wait()
	return publisher.Result(errs)
}

func (p *Publisher) publish(ctx context.Context, e *forward.Event, deadline time.Time) error {
	at, known := p.find(e)
	if known != nil {
		if known.done {
			return known.err
		}
		return waits(e, leastPause, "has not answered yet")
	}
	wait, gone, alone := at.enter(time.Now())
	switch {
	case gone:
		return forward.Permanent(fmt.Errorf("outboxwebhook: event %s: %s has answered that it is gone", e.ID,
			place(e.To)))
	case wait > 0:
		return waits(e, wait+rand.N(wait/10+1), "does not answer in time, or asked for a pause")
	}
	if alone {
		deadline = time.Now() // no call waits for a slow endpoint
	}
	if alone && !at.admits() || !alone && !at.waits(ctx, deadline) {
		at.left()
		return waits(e, leastPause, "has as many requests as Config.Concurrency and Config.Rate allow")
	}
	ended := make(chan error, 1)
	p.calls.Go(func() { p.send(context.WithoutCancel(ctx), at, e, ended) })
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.leave(at, e, ended)
}

// send posts an event, with a slot of its endpoint, which it gives back.
func (p *Publisher) send(ctx context.Context, at *endpoint, e *forward.Event, ended chan<- error) {
	limit, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	began := time.Now()
	answered, err := p.post(limit, at, e)
	p.finish(at, e, answered, time.Since(began) < p.wait, err, ended)
	<-at.slots
}

// lateKey is the key of the answer to one attempt.
func lateKey(e *forward.Event) string {
	return fmt.Sprint(webhookID(e), " ", e.Target, " ", e.Attempt, " ", e.To)
}

// find returns the endpoint of an event, or the answer to its request in the background.
func (p *Publisher) find(e *forward.Event) (at *endpoint, known *answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := lateKey(e)
	if a := p.late[id]; a != nil {
		if a.done {
			delete(p.late, id)
		}
		copied := *a
		return nil, &copied
	}
	if at = p.endpoints[e.To]; at == nil {
		p.forget(time.Now())
		at = p.config.newEndpoint()
		p.endpoints[e.To] = at
	}
	return at, nil
}

// forget drops unused answers and endpoints, once in a minute.
func (p *Publisher) forget(now time.Time) {
	const unused = 10 * time.Minute
	if now.Sub(p.swept) < time.Minute {
		return
	}
	p.swept = now
	for id, a := range p.late {
		if a.done && now.After(a.until) {
			delete(p.late, id)
		}
	}
	for url, at := range p.endpoints {
		at.mu.Lock()
		idle := len(at.slots) == 0 && now.Sub(at.lastUse) > unused && now.After(at.until)
		at.mu.Unlock()
		if idle {
			delete(p.endpoints, url)
		}
	}
}

// leave lets a request go on in the background. Its event comes back when it has ended.
func (p *Publisher) leave(at *endpoint, e *forward.Event, ended <-chan error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case err := <-ended: // just now
		return err
	default:
	}
	p.forget(time.Now())
	p.late[lateKey(e)] = &answer{}
	at.late()
	return waits(e, 2*leastPause, "has not answered yet")
}

// waits has an event wait without an attempt.
func waits(e *forward.Event, d time.Duration, why string) error {
	return handlers.SnoozeWith(d, fmt.Errorf("outboxwebhook: event %s: %s %s", e.ID, place(e.To), why))
}

// finish hands on the answer to a request, and stores it if its event comes back for it.
func (p *Publisher) finish(at *endpoint, e *forward.Event, answered, inTime bool, err error, ended chan<- error) {
	const kept = 10 * time.Minute
	p.mu.Lock() // so that leave sees all of it or nothing
	defer p.mu.Unlock()
	at.ended(answered, inTime)
	ended <- err
	if a := p.late[lateKey(e)]; a != nil {
		a.done, a.err, a.until = true, err, time.Now().Add(kept)
	}
}

// Resume sends requests again to an endpoint that has answered 410, or that rests after
// Retry-After.
func (p *Publisher) Resume(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.endpoints[url]; at != nil {
		at.resume()
	}
}

// Ready returns nil until Close: there is no one server that would have to answer.
func (p *Publisher) Ready(context.Context) error {
	if !p.calls.Begin() {
		return errClosed
	}
	p.calls.End()
	return nil
}

// Close waits for all requests, also those in the background, and closes the connections. It does
// not wait for a function of the Config that hangs. Later calls of Publish return
// forward.Unavailable.
func (p *Publisher) Close() {
	p.calls.Close()
	p.client.CloseIdleConnections()
}
