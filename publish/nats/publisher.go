package outboxnats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// Config of Connect. The zero Config is the default.
type Config struct {
	// Options of the connection: credentials, TLS, a name. They come after those of Connect, and are
	// used again for each new connection.
	Options []nats.Option
	// Logger hears once of an event that a stream had already; nil is slog.Default.
	Logger *slog.Logger
}

// maxPending is how many messages wait for their acknowledgement at once: those of 80 workers.
const maxPending = 16_000

// ackTimeout lets go of messages whose acknowledgement never comes; Publish has returned by then.
const ackTimeout = 30 * time.Second

// errClosed is that of a Publisher after Close.
var errClosed = errors.New("outboxnats: the publisher is closed")

// Publisher is a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	dial func() (*link, error) // nil: the connection is the app's
	log  *slog.Logger

	duplicates atomic.Int64
	told       sync.Once // of a duplicate

	calls publisher.Calls

	mu   sync.Mutex
	link *link
}

// Connect connects to a server or a cluster: the URL may be several, separated by commas. It does
// not wait for a server. It connects again for as long as the Publisher is open, also after refused
// logins, and makes a new connection in place of one that the server or the client closed for good.
// While there is no connection nothing is buffered: Publish returns forward.Unavailable.
func Connect(url string, c Config) (*Publisher, error) {
	p := &Publisher{log: cmp.Or(c.Logger, slog.Default()), dial: func() (*link, error) { return dial(url, c.Options) }}
	var err error
	if p.link, err = p.dial(); err != nil {
		return nil, err
	}
	return p, nil
}

// New publishes over the app's own connection, which Close leaves open. Connect it with
// nats.ReconnectBufSize(-1): a message that waits in a buffer for a new connection may arrive later
// than newer ones of its key. It connects again for as long as the app's options say: use
// nats.MaxReconnects(-1) and nats.IgnoreAuthErrorAbort(). The JetStream needs
// jetstream.WithPublishAsyncTimeout, and has room for 4,000 messages in flight unless
// jetstream.WithPublishAsyncMaxPending says otherwise.
func New(js jetstream.JetStream) *Publisher {
	return &Publisher{link: &link{js: js}, log: slog.Default()}
}

// current is the connection that a call uses: a new one if the last was closed for good.
func (p *Publisher) current() (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dial != nil && p.link.js.Conn().IsClosed() {
		l, err := p.dial()
		if err != nil {
			return nil, err
		}
		p.link = l
	}
	return p.link, p.link.connected()
}

// Publish implements forward.Publisher. docs/faults.md has the meaning of each error.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.All(events, forward.Unavailable(errClosed, 0))
	}
	defer p.calls.End()
	l, err := p.current()
	if err != nil {
		return publisher.All(events, forward.Unavailable(err, 0))
	}
	c := &call{p: p, l: l, began: time.Now(), errs: make([]error, len(events))}
	c.send(ctx, events)
	for i, e := range events {
		if c.errs[i] == nil {
			c.errs[i] = c.wait(ctx, e, c.acks[i])
		}
	}
	return publisher.Result(c.errs)
}

// Duplicates is how many events were acknowledged as known, since a stream has their message ID. An
// event that is published again is one. A stream that has another event under the ID is an error.
func (p *Publisher) Duplicates() int64 { return p.duplicates.Load() }

// Ready returns nil if there is a connection and JetStream answers.
func (p *Publisher) Ready(ctx context.Context) error {
	if !p.calls.Begin() {
		return errClosed
	}
	defer p.calls.End()
	l, err := p.current()
	if err != nil {
		return err
	}
	if _, err := l.js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("outboxnats: JetStream does not answer: %w", err)
	}
	return nil
}

// Close waits for the calls of Publish that have begun, and closes the connection, if it is the
// Publisher's own. Later calls return forward.Unavailable.
func (p *Publisher) Close() {
	p.calls.Close()
	if p.dial != nil {
		p.link.js.Conn().Close()
	}
}
