package outboxkafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox/forward"
)

// Config of Connect. The zero Config is the default.
type Config struct {
	// Options of the client: SASL, TLS, compression. They come after those of Connect.
	Options []kgo.Opt
}

// errClosed is that of a Publisher after Close.
var errClosed = errors.New("outboxkafka: the publisher is closed")

// Publisher is a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	client *kgo.Client
	own    bool // Close closes it

	mu       sync.RWMutex // held for writing by Close
	closed   bool
	inFlight sync.WaitGroup
}

// Connect makes a client for the brokers: "host:port", or several with commas between them, with or
// without "kafka://" before. It does not wait for a broker, and connects again for as long as the
// Publisher is open. A topic that does not exist is not created.
func Connect(url string, c Config) (*Publisher, error) {
	brokers := strings.Split(strings.TrimPrefix(url, "kafka://"), ",")
	for _, b := range brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("outboxkafka: connect: %q is no broker: it must be host:port; options of the client go into Config.Options", b)
		}
	}
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...), kgo.ClientID("outbox"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond), kgo.RecordDeliveryTimeout(30 * time.Second),
		kgo.MetadataMinAge(250 * time.Millisecond), kgo.UnknownTopicRetries(4),
	}, c.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("outboxkafka: connect: %w", err)
	}
	p := New(client)
	p.own = true
	return p, nil
}

// New publishes by the app's own client, which Close leaves open. It should be idempotent, as kgo's
// clients are by default.
func New(client *kgo.Client) *Publisher { return &Publisher{client: client} }

// Publish is that of forward.Publisher. Too large a record, a topic that does not exist or may not be
// written to, and a record that the broker finds invalid are forward.Permanent. A lost connection,
// too few replicas and a late acknowledgement are forward.Unavailable.
//
// If ctx ends first, what the client has sent may still arrive: it is published again then.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	p.mu.RLock()
	if p.closed {
		p.mu.RUnlock()
		errs := make([]error, len(events))
		for i := range errs {
			errs[i] = forward.Unavailable(errClosed, 0)
		}
		return errs
	}
	p.inFlight.Add(1)
	p.mu.RUnlock()
	defer p.inFlight.Done()
	errs := p.produce(ctx, events)
	if len(events) > 1 {
		// A broker refuses a batch as a whole for one of its records.
		for i, err := range errs {
			if isOfOne(err) {
				errs[i] = p.produce(ctx, events[i:i+1])[0]
			}
		}
	}
	failed := false
	for i, err := range errs {
		errs[i] = classify(events[i], err)
		failed = failed || err != nil
	}
	if !failed {
		return nil
	}
	return errs
}

// produce sends the events at once, and waits until each is acknowledged or refused.
func (p *Publisher) produce(ctx context.Context, events []*forward.Event) []error {
	type result struct {
		i   int
		err error
	}
	results := make(chan result, len(events)) // those that come after ctx has ended find room
	for i, e := range events {
		p.client.Produce(ctx, record(e), func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	errs, missing := make([]error, len(events)), make([]bool, len(events))
	for i := range missing {
		missing[i] = true
	}
	for range events {
		select {
		case r := <-results:
			errs[r.i], missing[r.i] = r.err, false
		case <-ctx.Done():
			for len(results) > 0 { // both may be so
				r := <-results
				errs[r.i], missing[r.i] = r.err, false
			}
			for i := range events {
				if missing[i] {
					errs[i] = fmt.Errorf("no acknowledgement: %w", ctx.Err())
				}
			}
			return errs
		}
	}
	return errs
}

// record has the time of its publication, as Kafka deletes records by their age, and kgo's delivery
// timeout counts from it. The time of the event is in ce_time.
func record(e *forward.Event) *kgo.Record {
	r := &kgo.Record{Topic: e.To, Value: e.Data, Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte(forward.ContentType)}}}
	if e.Key != "" {
		r.Key = []byte(e.Key)
	}
	for _, h := range e.CloudEvents("ce_") {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
	}
	return r
}

// Ready returns nil if a broker answers.
func (p *Publisher) Ready(ctx context.Context) error {
	p.mu.RLock()
	closed := p.closed
	p.mu.RUnlock()
	if closed {
		return errClosed
	}
	if err := p.client.Ping(ctx); err != nil {
		return fmt.Errorf("outboxkafka: no broker answers: %w", err)
	}
	return nil
}

// Close waits for the calls of Publish that have begun, and closes the client, if Connect made it.
// Later calls return forward.Unavailable.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.inFlight.Wait()
	if p.own {
		p.client.Close()
	}
}
