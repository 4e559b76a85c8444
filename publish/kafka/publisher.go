// Package outboxkafka publishes events to Kafka and brokers with its protocol, as a publisher of
// package forward.
//
//	import outboxkafka "github.com/txoutbox/outbox/publish/kafka"
//
//	publisher, err := outboxkafka.Open("kafka1:9092,kafka2:9092", outboxkafka.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// An event goes to the topic that forward.To names, which must exist. Its record has the ordering
// key as key, so that the events of a key share a partition; the attributes of CloudEvents as
// headers (ce_id, ce_type, …), and content-type application/json.
//
// The producer is idempotent and waits for all in-sync replicas (acks=all). An event may be in a
// topic twice all the same: when a relay dies before it records the acknowledgement. Its ce_source
// and ce_id are the same then; package inbox tells.
package outboxkafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// Config says how events are published. The zero Config is the default.
type Config struct {
	// Options of the client that Open makes: SASL, TLS, compression. They come after Open's own. New
	// refuses them: the app's client has its own. Default none.
	Options []kgo.Opt
}

// Publisher publishes events to Kafka, as a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	open func() (*kgo.Client, error) // nil: the client is the app's

	calls publisher.Calls

	mu     sync.Mutex
	client *kgo.Client
}

// recordRetries is how often the client sends a record again after an answer that the protocol
// calls retriable: for about three seconds, within which most leaders are elected.
const recordRetries = 12

// Open makes a client for the brokers: "host:port", or several with commas between them, with or
// without "kafka://" before. Spaces around them do not matter. It does not wait for a broker, and
// returns an error if brokers or the Config is invalid. The client connects again for as long as
// the Publisher is open, also after refused logins. A client whose producer ID was refused is
// replaced. A topic that does not exist is not created.
func Open(brokers string, config Config) (*Publisher, error) {
	seeds := strings.Split(strings.TrimPrefix(strings.TrimSpace(brokers), "kafka://"), ",")
	for i := range seeds {
		seeds[i] = strings.TrimSpace(seeds[i])
		b := seeds[i]
		host, port, err := net.SplitHostPort(b)
		if err != nil || host == "" || port == "" || strings.ContainsFunc(b, unicode.IsSpace) {
			return nil, fmt.Errorf("outboxkafka: %q is no broker: it must be host:port; options of the client go "+
				"into Config.Options", b)
		}
	}
	if i := slices.Index(config.Options, nil); i >= 0 {
		return nil, fmt.Errorf("outboxkafka: Config.Options: %d is nil", i)
	}
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.ClientID("outbox"), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Millisecond), kgo.RecordDeliveryTimeout(30 * time.Second),
		kgo.RecordRetries(recordRetries),
		kgo.MetadataMinAge(250 * time.Millisecond), kgo.UnknownTopicRetries(4),
	}, config.Options...)
	p := &Publisher{open: func() (*kgo.Client, error) { return kgo.NewClient(opts...) }}
	var err error
	if p.client, err = p.open(); err != nil {
		return nil, fmt.Errorf("outboxkafka: Config.Options: %w", err)
	}
	return p, nil
}

// New returns a Publisher over the app's own client, which Close leaves open. The client should be
// idempotent, as kgo's are by default, and have kgo.RecordRetries: else an answer that the protocol
// calls retriable shows only as the end of the time limit. A client whose producer ID was refused,
// for lack of rights, produces nothing any more: the app has to make another one. New refuses a nil
// client, and Config.Options.
func New(client *kgo.Client, config Config) (*Publisher, error) {
	switch {
	case client == nil:
		return nil, errors.New("outboxkafka: the client is nil")
	case len(config.Options) > 0:
		return nil, errors.New("outboxkafka: Config.Options: they are for Open: the client has its own")
	}
	return &Publisher{client: client}, nil
}

// Publish publishes events to Kafka, and implements forward.Publisher.
// https://github.com/txoutbox/outbox/blob/main/docs/faults.md has the meaning of each error.
//
// If ctx ends first, events that the client has sent may still arrive, and are published again.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.Closed(events)
	}
	defer p.calls.End()
	c := &call{client: p.current(), events: events, errs: make([]error, len(events))}
	errs := c.publish(ctx)
	if topics := c.recreated(); len(topics) > 0 {
		c.client.PurgeTopicsFromProducing(topics...)
	}
	if p.open != nil && c.producerRefused(ctx) {
		p.renew(c.client)
	}
	return errs
}

func (p *Publisher) current() *kgo.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

// renew replaces a client, unless another call has.
func (p *Publisher) renew(old *kgo.Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client != old {
		return
	}
	if client, err := p.open(); err == nil { // the options were good before
		p.client = client
		p.calls.Go(old.Close)
	}
}

// Ready returns nil if the Publisher is open and a broker answers.
func (p *Publisher) Ready(ctx context.Context) error {
	if !p.calls.Begin() {
		return publisher.ErrClosed
	}
	defer p.calls.End()
	if err := p.current().Ping(ctx); err != nil {
		return fmt.Errorf("outboxkafka: no broker answers: %w", err)
	}
	return nil
}

// Close waits for the calls of Publish that have begun, and closes the client, if Open made it.
// Later calls of Publish return forward.Unavailable. It may be called several times. Its error is
// always nil.
func (p *Publisher) Close() error {
	p.calls.Close()
	if p.open != nil {
		p.client.Close()
	}
	return nil
}
