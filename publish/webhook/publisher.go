package outboxwebhook

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/publisher"
)

// defaultWait is the time for which Publish waits for a request. It goes on in the background then.
const defaultWait = time.Second

// Publisher is a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	config Config
	client *http.Client
	wait   time.Duration // of Publish for a request

	calls publisher.Calls

	mu        sync.Mutex
	endpoints map[string]*endpoint
	late      map[string]*request // those that went on in the background
	swept     time.Time           // when forget last ran
}

// request is a request to an endpoint. Its fields are under the mu of the Publisher.
type request struct {
	ended chan struct{} // closed when the others are set
	done  bool
	err   error
	until time.Time // then it is forgotten
}

// New makes a Publisher. The error names each invalid field of config.
func New(config Config) (*Publisher, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Publisher{
		config: config, client: config.client(nil), wait: defaultWait,
		endpoints: map[string]*endpoint{}, late: map[string]*request{},
	}, nil
}

// Publish implements forward.Publisher. The package has the meaning of each answer. It waits about
// a second for each request at most.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.Closed(events)
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
	at, known, err := p.find(e)
	if known {
		return err
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
		at.skip()
		return waits(e, leastPause, "has as many requests as Config.Concurrency and Config.Rate allow")
	}
	r := &request{ended: make(chan struct{})}
	p.calls.Go(func() { p.send(context.WithoutCancel(ctx), at, e, r) })
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return p.result(at, e, r)
}

// send posts an event, with a slot of its endpoint, which it gives back.
func (p *Publisher) send(ctx context.Context, at *endpoint, e *forward.Event, r *request) {
	const kept = 10 * time.Minute
	limit, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	began := time.Now()
	answered, err := p.post(limit, at, e)
	p.mu.Lock() // so that result sees all of it or nothing
	at.ended(answered, time.Since(began) < p.wait)
	r.done, r.err, r.until = true, err, time.Now().Add(kept)
	close(r.ended)
	p.mu.Unlock()
	<-at.slots
}

// result is the error of a request. A request that has not ended goes on in the background, and its
// event comes back.
func (p *Publisher) result(at *endpoint, e *forward.Event, r *request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.done {
		return r.err
	}
	p.forget(time.Now())
	p.late[lateKey(e)] = r
	at.late()
	return waits(e, 2*leastPause, "has not answered yet")
}

// lateKey is the key of the answer to one attempt.
func lateKey(e *forward.Event) string {
	return fmt.Sprint(webhookID(e), " ", e.Target, " ", e.Attempt, " ", e.To)
}

// find returns the endpoint of an event. It is known if its request is in the background: then err is
// the answer, or says that there is none yet.
func (p *Publisher) find(e *forward.Event) (at *endpoint, known bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := lateKey(e)
	switch r := p.late[id]; {
	case r != nil && r.done:
		delete(p.late, id)
		return nil, true, r.err
	case r != nil:
		return nil, true, waits(e, leastPause, "has not answered yet")
	}
	if at = p.endpoints[e.To]; at == nil {
		p.forget(time.Now())
		at = p.config.newEndpoint()
		p.endpoints[e.To] = at
	}
	return at, false, nil
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

// waits has an event wait without an attempt.
func waits(e *forward.Event, d time.Duration, why string) error {
	return handlers.SnoozeWith(d, fmt.Errorf("outboxwebhook: event %s: %s %s", e.ID, place(e.To), why))
}

// Resume sends requests again to an endpoint that has answered 410, or that rests after
// Retry-After. url is the event's To. An endpoint that has had no request is left as it is.
func (p *Publisher) Resume(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.endpoints[url]; at != nil {
		at.resume()
	}
}

// Ready returns nil if the Publisher is open. It sends no request.
func (p *Publisher) Ready(context.Context) error {
	if !p.calls.Begin() {
		return publisher.ErrClosed
	}
	p.calls.End()
	return nil
}

// Close waits for all requests, also those in the background, and closes the connections. It does
// not wait for a function of the Config that hangs. Later calls of Publish return
// forward.Unavailable. It may be called several times. Its error is always nil.
func (p *Publisher) Close() error {
	p.calls.Close()
	p.client.CloseIdleConnections()
	return nil
}
