package outboxamqp

import (
	"context"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

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
