// Package outboxamqp publishes events to RabbitMQ, or another broker of AMQP 0.9.1 with publisher
// confirms.
//
//	import outboxamqp "github.com/txoutbox/outbox/publish/amqp"
//
//	publisher, err := outboxamqp.Open("amqp://guest:guest@localhost:5672/", outboxamqp.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders"))
//
// An event's To is its routing key. With the default exchange that is the name of a queue.
// Exchanges, queues and bindings are the app's to declare.
//
// A message is persistent and mandatory. Its properties are message_id (the event's id), type,
// timestamp and content_type. Its headers are the CloudEvents attributes with the prefix
// "cloudEvents_", and the headers of the task.
//
// The broker confirms each message once its queues have it. An event is published if it is
// confirmed. https://github.com/txoutbox/outbox/blob/main/docs/faults.md has the errors of the
// others. In short:
//
//   - [forward.Permanent]: the message is too large, or a name is too long for AMQP.
//   - [forward.TargetUnavailable]: the queue is full, no queue takes the routing key, or the
//     exchange is missing or not writable.
//   - [forward.Unavailable]: the connection is lost, the login is refused, or the broker blocks the
//     connection for lack of memory or disk.
//
// A refusal closes the channel or the connection, and the confirms of events in flight are lost.
// These are published again, one by one, so some arrive twice. The same holds after a lost
// connection. Consumers tell by source and id (package inbox).
package outboxamqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

const (
	defaultChannels    = 4
	mostChannels       = 1000
	defaultDialTimeout = 10 * time.Second
)

// Config says how events are published. It is copied by Open; the zero value of a field is its
// default.
type Config struct {
	// Exchange is the exchange that events are published to. Default "", the default exchange:
	// routing keys are then the names of queues.
	Exchange string
	// Channels is how many calls of Publish run at once; others wait. Each has an AMQP channel of
	// its own. 1 to 1000, default 4. Beyond the broker's channel_max, events are
	// forward.Unavailable.
	Channels int
	// DialConfig has settings that no URL has, such as TLS. Its Recovery must be nil, since the
	// Publisher connects again by itself. Default nil.
	DialConfig *amqp.Config
	// Logger gets connections that are made, lost or blocked. Errors that Publish returns are not
	// logged. nil is slog.Default().
	Logger *slog.Logger
}

// dialing has the parameters of a connection.
type dialing struct {
	url     string
	name    string // the URL without its password, for messages
	timeout time.Duration
	config  amqp.Config
}

// check names what is wrong, and sets the defaults.
func (c *Config) check() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("outboxamqp: Config."+format, args...))
		}
	}
	c.Channels, c.Logger = cmp.Or(c.Channels, defaultChannels), cmp.Or(c.Logger, slog.Default())
	refuse(c.Channels < 1 || c.Channels > mostChannels, "Channels: %d: must be within 1 to %d; 0 is %d", c.Channels,
		mostChannels, defaultChannels)
	refuse(len(c.Exchange) > mostShort, "Exchange: has %d bytes: AMQP allows %d", len(c.Exchange), mostShort)
	refuse(c.DialConfig != nil && c.DialConfig.Recovery != nil,
		"DialConfig.Recovery: must be nil: the Publisher connects again by itself")
	return errors.Join(errs...)
}

// newDialing checks the URL. Errors of parsing may quote the password, so they are left out.
func newDialing(address string, config *amqp.Config) (dialing, error) {
	u, err := url.Parse(address)
	uri, amqpErr := amqp.ParseURI(address)
	if err != nil || amqpErr != nil {
		return dialing{}, errors.New("outboxamqp: the URL is malformed: it is like " +
			"amqp://user:password@host:5672/vhost, " +
			"with amqps for TLS and reserved characters of the password as %XX")
	}
	d := dialing{url: address, name: u.Redacted(), timeout: defaultDialTimeout}
	if uri.ConnectionTimeout > 0 {
		d.timeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	if config != nil {
		d.config = *config
		d.config = d.copied()
	}
	return d, nil
}

// copied is the configuration with its parts, to which the library writes.
func (d *dialing) copied() amqp.Config {
	c := d.config
	c.Properties, c.SASL = maps.Clone(c.Properties), slices.Clone(c.SASL)
	if c.TLSClientConfig != nil {
		c.TLSClientConfig = c.TLSClientConfig.Clone()
	}
	return c
}

// pause is between attempts to connect. It is less than the circuit of package forward waits, so
// each of its trials connects.
const pause = 500 * time.Millisecond

// Publisher is a forward.Publisher for RabbitMQ. It is safe for concurrent use.
type Publisher struct {
	dialing dialing
	config  Config
	lanes   chan *lane
	gate    gate
	probing chan struct{} // has room for one Ready that asks the broker

	calls   publisher.Calls
	running sync.WaitGroup  // what outlives the calls
	closing context.Context // ends when Close begins
	close   context.CancelFunc

	mu     sync.Mutex
	conn   *conn
	dialed chan struct{} // closed at the end of the dial that runs; nil if none runs
	err    error         // of the last dial or connection
	again  time.Time     // no dial before
}

var _ forward.Publisher = (*Publisher)(nil)

// Open returns a Publisher for the broker of an AMQP URL. It does not connect: Publish and Ready
// do, and again after the connection was lost. The broker may thus start later than the app. Open
// returns an error if the URL or the Config is invalid.
func Open(url string, config Config) (*Publisher, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	d, err := newDialing(url, config.DialConfig)
	if err != nil {
		return nil, err
	}
	p := &Publisher{dialing: d, config: config, lanes: make(chan *lane, config.Channels),
		gate: newGate(config.Channels), probing: make(chan struct{}, 1)}
	p.closing, p.close = context.WithCancel(context.Background())
	for range config.Channels {
		p.lanes <- &lane{p: p}
	}
	return p, nil
}

// Publish sends events and waits for the broker's confirms. It implements forward.Publisher; the
// package has the meaning of the errors. When ctx ends, events without a confirm are
// forward.Unavailable, and wrap its error. If the broker does not even read then, the connection is
// closed. Of several events of one ordering key each is sent after the confirm of the one before,
// or not at all if that failed and is to be retried.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.Closed(events)
	}
	defer p.calls.End()
	b := newBatch(events)
	var l *lane
	select {
	case l = <-p.lanes:
	case <-p.closing.Done():
		return b.end(forward.Unavailable(publisher.ErrClosed, 0))
	case <-ctx.Done():
		return b.end(p.ended(ctx, "all channels are in use"))
	}
	defer func() { p.lanes <- l }()
	for group := b.group(); len(group) > 0; group = b.group() {
		if err := l.publish(ctx, b, group); err != nil {
			return b.end(err)
		}
	}
	return b.end(nil)
}

// ended is the error of events without an answer when ctx has ended.
func (p *Publisher) ended(ctx context.Context, why string) error {
	return forward.Unavailable(fmt.Errorf("outboxamqp: %s: %s: %w", p.dialing.name, why, ctx.Err()), 0)
}

// Ready returns nil if the Publisher is open and the broker can be used: it is connected, not
// blocked, and has the exchange. It connects if need be.
func (p *Publisher) Ready(ctx context.Context) error {
	if !p.calls.Begin() {
		return publisher.ErrClosed
	}
	defer p.calls.End()
	c, err := p.connection(ctx)
	if err != nil {
		return err
	}
	if err := c.unblocked(); err != nil {
		return err
	}
	select {
	case p.probing <- struct{}{}:
	case <-ctx.Done():
		return p.ended(ctx, "an earlier Ready waits for an answer")
	}
	answer := make(chan error, 1)
	p.running.Go(func() {
		answer <- c.knows(p.config.Exchange)
		<-p.probing
	})
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return p.ended(ctx, "no answer")
	}
}

// connection returns the connection, after it has dialed if there is none. One dial serves all.
func (p *Publisher) connection(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	switch {
	case p.conn != nil && !p.conn.IsClosed():
		defer p.mu.Unlock()
		return p.conn, nil
	case p.dialed == nil && time.Now().Before(p.again):
		defer p.mu.Unlock()
		return nil, p.err
	case p.dialed == nil:
		p.dialed = make(chan struct{})
		p.running.Go(p.dial)
	}
	dialed := p.dialed
	p.mu.Unlock()
	select {
	case <-dialed:
	case <-ctx.Done():
		return nil, p.ended(ctx, "no connection")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil || p.conn.IsClosed() {
		return nil, p.err
	}
	return p.conn, nil
}

// dial makes a connection, and keeps it or the error.
func (p *Publisher) dial() {
	c, err := p.dialing.dial(p.closing)
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dialed)
	p.dialed, p.conn = nil, c
	if err != nil {
		p.again, p.err = time.Now().Add(pause), forward.Unavailable(err, 0)
		return
	}
	p.again = time.Time{}
	p.err = forward.Unavailable(fmt.Errorf("outboxamqp: %s: the connection was lost", p.dialing.name), 0)
	p.config.Logger.Info("outboxamqp: connected", "url", p.dialing.name)
	if p.closing.Err() != nil { // Close did not see the connection
		c.kill()
	}
	blocks, closes := c.NotifyBlocked(make(chan amqp.Blocking, 1)), c.NotifyClose(make(chan *amqp.Error, 1))
	p.running.Go(func() { c.watch(p.config.Logger, blocks, closes) })
}

// Close waits for the calls of Publish that have begun, and closes the connection. Later calls of
// Publish return forward.Unavailable. It may be called several times. Its error is always nil.
func (p *Publisher) Close() error {
	p.close()
	p.calls.Close()
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	if c != nil {
		c.end()
	}
	p.running.Wait()
	return nil
}
