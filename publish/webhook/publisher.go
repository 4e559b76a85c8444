// Package outboxwebhook posts events to HTTP endpoints, as a publisher of package forward.
//
//	import outboxwebhook "github.com/txoutbox/outbox/publish/webhook"
//
//	publisher, err := outboxwebhook.New(outboxwebhook.Config{Secrets: secretsOf})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.Route(endpointOf))
//
// forward.Route gives the endpoint's URL. A request has the payload as its body, the attributes of
// CloudEvents as headers (ce-id, ce-type, …), and webhook-id, webhook-timestamp and
// webhook-signature of Standard Webhooks. The webhook-id is the event's id, the same in every
// attempt.
//
// The answer decides on the event:
//
//   - A status of 2xx: it is done.
//   - 410: it is a dead letter, as are later events of the endpoint within Config.GoneFor.
//   - 413, a URL that is not valid, and an address that is refused: it is a dead letter.
//   - 429 and 503 with Retry-After: it is sent again after that time, an hour at most. No attempt
//     counts for three days, or the time of handlers.MaxElapsed. Other events of the endpoint wait
//     as long. A Retry-After of 0, in the past or not valid is none.
//   - Anything else: it is retried as after any failed attempt. So is a redirect (3xx), which is
//     not followed, and a name whose addresses are all refused.
//
// Endpoints are other people's, so addresses that are not public are refused: loopback, private,
// link-local and the like. The check is on the address that is dialled, so a name that resolves to
// one later is refused as well. No proxy is used.
//
// One slow endpoint does not hold up the others. A call of Publish waits for a request for a
// second. Then the request goes on in the background, and its event comes back for the answer.
// Meanwhile other events of the endpoint wait. An endpoint that does not answer in time gets one
// request at a time, with pauses of up to a minute between them. If the relay dies meanwhile, or
// another one has the event next, the event is sent again. So a repetition of an event may arrive
// after the next one of its ordering key.
package outboxwebhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/publisher"
)

// Config says how events are posted. Secrets or Unsigned is needed; the other zero values are
// defaults. Its functions are called by several goroutines at once; they must not change or keep an
// event.
type Config struct {
	// Secrets returns the signing secrets of an event's endpoint, e.To, as whsec_… or their base64
	// alone. A request has a signature by each, so an endpoint can change from one to the other.
	// After an error, an invalid secret or none, nothing is sent and the attempt fails. Secrets is
	// called for each request. It must be set unless Unsigned is.
	Secrets func(ctx context.Context, e *forward.Event) ([]string, error)
	// Unsigned sends requests without signatures, if Secrets is nil.
	Unsigned bool

	// Timeout bounds a request: default 5 s, at most a minute.
	Timeout time.Duration
	// Concurrency is how many requests an endpoint gets at once from this Publisher: default 10.
	Concurrency int
	// Rate is how many requests an endpoint gets from this Publisher within RatePer at most, evenly; 0
	// is any number.
	Rate int
	// RatePer is the time of Rate: default a second; refused without a Rate.
	RatePer time.Duration
	// GoneFor is how long an endpoint that answered 410 gets no more requests: default an hour.
	GoneFor time.Duration
	// OnGone is called when an endpoint, e.To, answers 410, so that the app sends no more events
	// there. Its error is added to that of the event, which is a dead letter. Default nil: no call.
	OnGone func(ctx context.Context, e *forward.Event) error

	// AllowHTTP allows URLs with http; by default only https is.
	AllowHTTP bool
	// AllowNetworks are addresses that are dialled although they are not public: those of one's own
	// network. Default none.
	AllowNetworks []netip.Prefix
	// TLS of connections; nil is the default of crypto/tls.
	TLS *tls.Config
	// TaskHeaders are the names of task headers that are sent along, such as traceparent; by default
	// none is. Those of the request itself, of CloudEvents and of Standard Webhooks cannot be named.
	TaskHeaders []string
}

var (
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	ownHeader  = regexp.MustCompile("(?i)^(ce-.*|webhook-.*|content-.*|user-agent|host|connection|transfer-encoding)$")
)

const (
	defaultTimeout     = 5 * time.Second
	mostTimeout        = time.Minute
	defaultConcurrency = 10
	defaultGoneFor     = time.Hour
)

// check names what is wrong, and sets the defaults.
func (c *Config) check() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("outboxwebhook: Config."+format, args...))
		}
	}
	refuse(c.Secrets == nil && !c.Unsigned, "Secrets: is nil: receivers could not tell your requests from others; set "+
		"Unsigned if that is what you want")
	refuse(c.Timeout < 0 || c.Timeout > mostTimeout, "Timeout: is %v, must be at most %v", c.Timeout, mostTimeout)
	refuse(c.Concurrency < 0, "Concurrency: is %d, must not be negative", c.Concurrency)
	refuse(c.Rate < 0 || c.RatePer < 0 || c.RatePer > 0 && c.Rate == 0,
		"Rate: is %d in %v, must be at least 1, or 0 in 0 for any number", c.Rate, c.RatePer)
	refuse(c.GoneFor < 0, "GoneFor: is %v, must not be negative", c.GoneFor)
	for _, p := range c.AllowNetworks {
		refuse(!p.IsValid() || p.Addr().Is4In6(), "AllowNetworks: %v is no prefix of IPv4 or IPv6 addresses", p)
	}
	for _, name := range c.TaskHeaders {
		refuse(!headerName.MatchString(name) || ownHeader.MatchString(name),
			"TaskHeaders: %q is no name of a header, or of one that each request has", name)
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Concurrency = cmp.Or(c.Concurrency, defaultConcurrency)
	c.RatePer = cmp.Or(c.RatePer, time.Second)
	c.GoneFor = cmp.Or(c.GoneFor, defaultGoneFor)
	c.AllowNetworks, c.TaskHeaders = slices.Clone(c.AllowNetworks), slices.Clone(c.TaskHeaders)
	c.TLS = c.TLS.Clone() // net/http adds protocols to it
	return errors.Join(errs...)
}

// defaultWait is the time for which Publish waits for a request. It goes on in the background then.
const defaultWait = time.Second

// Publisher publishes events to HTTP endpoints, as a forward.Publisher. It is safe for concurrent
// use.
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

// New makes a Publisher for HTTP endpoints. The error names each invalid field of config.
func New(config Config) (*Publisher, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	return &Publisher{
		config: config, client: config.client(nil), wait: defaultWait,
		endpoints: map[string]*endpoint{}, late: map[string]*request{},
	}, nil
}

// Publish publishes events to HTTP endpoints, and implements forward.Publisher. The package has the
// meaning of each answer. It waits about a second for each request at most.
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
