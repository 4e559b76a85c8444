// Package outboxnats publishes events to NATS JetStream, as a publisher of package forward.
//
//	import outboxnats "github.com/txoutbox/outbox/publish/nats"
//
//	publisher, err := outboxnats.Open("nats://localhost:4222", outboxnats.Config{})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.To("orders.placed"))
//
// An event goes to the subject that forward.To names; a stream must take it. Its message has the
// attributes of CloudEvents as headers (ce-id, ce-type, …), the Content-Type application/json, and
// the event's id as Nats-Msg-Id, or id/target for a target of forward.Fanout.
//
// JetStream stores a message once whose Nats-Msg-Id it has seen within the stream's duplicate
// window, by default two minutes. Choose a window that is longer than relays or the network may be
// away. If the stream has the Nats-Msg-Id already, the publisher reads the stored message. Its
// login needs STREAM.INFO and STREAM.MSG.GET for that. If the message is another event, the attempt
// fails: a copy of the database publishes, or the database was restored. See `outbox adopt`.
//
// JetStream delivers an event again that a consumer did not acknowledge: use package inbox.
package outboxnats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	neturl "net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// Config says how events are published. The zero Config is the default.
type Config struct {
	// Options of the connection that Open makes: credentials, TLS, a name. They come after Open's own,
	// and are used again for each new connection. New refuses them: the app's connection has its own.
	// Default none.
	Options []nats.Option
	// Logger gets a record of the first event that a stream had already; nil is slog.Default().
	Logger *slog.Logger
}

// maxPending is how many messages wait for their acknowledgement at once: those of 80 workers.
const maxPending = 16_000

// ackTimeout lets go of messages whose acknowledgement never comes; Publish has returned by then.
const ackTimeout = 30 * time.Second

// Publisher publishes events to NATS JetStream, as a forward.Publisher. It is safe for concurrent
// use.
type Publisher struct {
	dial func() (*link, error) // nil: the connection is the app's
	log  *slog.Logger

	duplicates atomic.Int64
	told       sync.Once // of a duplicate

	calls publisher.Calls

	mu   sync.Mutex
	link *link
}

// Open connects to a server or a cluster: the URL may be several, separated by commas. It tries
// each once, two seconds at most unless nats.Timeout is among the options, and goes on in the
// background. It returns an error if the URL or the Config is invalid. It connects again for as
// long as the Publisher is open, also after refused logins, and makes a new connection in place of
// one that the server or the client closed for good. While there is no connection nothing is
// buffered: Publish returns forward.Unavailable.
func Open(url string, config Config) (*Publisher, error) {
	if i := slices.IndexFunc(config.Options, func(o nats.Option) bool { return o == nil }); i >= 0 {
		return nil, fmt.Errorf("outboxnats: Config.Options: %d is nil", i)
	}
	options := slices.Clone(config.Options)
	p := &Publisher{log: cmp.Or(config.Logger, slog.Default()),
		dial: func() (*link, error) { return dial(url, options) }}
	var err error
	if p.link, err = p.dial(); err != nil {
		return nil, err
	}
	return p, nil
}

// New returns a Publisher over the app's own connection, which Close leaves open. Connect it with
// nats.ReconnectBufSize(-1): a message that waits in a buffer for a new connection may arrive later
// than newer ones of its ordering key. It connects again for as long as the app's options say: use
// nats.MaxReconnects(-1) and nats.IgnoreAuthErrorAbort(). The JetStream needs
// jetstream.WithPublishAsyncTimeout, and has room for 4,000 messages in flight unless
// jetstream.WithPublishAsyncMaxPending says otherwise. New refuses a nil js, and Config.Options.
func New(js jetstream.JetStream, config Config) (*Publisher, error) {
	switch {
	case js == nil:
		return nil, errors.New("outboxnats: the JetStream is nil")
	case len(config.Options) > 0:
		return nil, errors.New("outboxnats: Config.Options: they are for Open: the connection has its own")
	}
	return &Publisher{link: &link{js: js}, log: cmp.Or(config.Logger, slog.Default())}, nil
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

// Publish publishes events to NATS JetStream, and implements forward.Publisher.
// https://github.com/txoutbox/outbox/blob/main/docs/faults.md has the meaning of each error.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	if !p.calls.Begin() {
		return publisher.Closed(events)
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

// Duplicates is how many events a stream acknowledged without storing them, as it had their
// Nats-Msg-Id: events that were published again. Another event under the ID is an error instead.
func (p *Publisher) Duplicates() int64 { return p.duplicates.Load() }

// Ready returns nil if the Publisher is open and JetStream answers.
func (p *Publisher) Ready(ctx context.Context) error {
	if !p.calls.Begin() {
		return publisher.ErrClosed
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

// Close waits for the calls of Publish that have begun, and closes the connection, if Open made it.
// Later calls of Publish return forward.Unavailable. It may be called several times. Its error is
// always nil.
func (p *Publisher) Close() error {
	p.calls.Close()
	if p.dial != nil {
		p.link.js.Conn().Close()
	}
	return nil
}

// link is a connection, with the server's reports beside acknowledgements. The link of an app's
// connection gets no reports.
type link struct {
	js     jetstream.JetStream
	closed chan struct{} // by the connection's end for good

	mayNotRead atomic.Bool // messages of streams

	mu      sync.Mutex
	longest int                // bytes of a subject that was sent
	refused map[string]refusal // by subject
	changed chan struct{}      // closed by the next refusal
}

// refusal is a permissions violation, for which there is no acknowledgement.
type refusal struct {
	at  time.Time
	err error
}

// mostRefused bounds the subjects that are remembered.
const mostRefused = 1000

func dial(url string, own []nats.Option) (*link, error) {
	l := &link{closed: make(chan struct{}), refused: map[string]refusal{}, changed: make(chan struct{})}
	opts := append([]nats.Option{
		nats.Name("outbox"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), nats.ReconnectWait(250 * time.Millisecond),
	}, own...)
	conn, err := nats.Connect(url, append(opts, l.listen)...)
	if bad := (*neturl.Error)(nil); errors.As(err, &bad) {
		err = bad.Err // the rest is the URL, with its password
	}
	if err != nil {
		return nil, fmt.Errorf("outboxnats: open: %w", err)
	}
	l.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("outboxnats: open: %w", err)
	}
	return l, nil
}

// listen is an option that hears of errors and the end before the app's own handlers do.
func (l *link) listen(o *nats.Options) error {
	errorCB, closedCB := o.AsyncErrorCB, o.ClosedCB
	o.AsyncErrorCB = func(c *nats.Conn, s *nats.Subscription, err error) {
		l.heard(err)
		if errorCB != nil {
			errorCB(c, s, err)
		}
	}
	o.ClosedCB = func(c *nats.Conn) {
		close(l.closed)
		if closedCB != nil {
			closedCB(c)
		}
	}
	return nil
}

// heard notes the subject of a permissions violation, which the server's text has in quotes.
func (l *link) heard(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	before, text, _ := strings.Cut(err.Error(), `"`)
	subject, _, found := strings.Cut(text, `"`)
	if !found || !strings.Contains(strings.ToLower(before), "publish") {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.refused) >= mostRefused {
		clear(l.refused)
	}
	l.refused[subject] = refusal{time.Now(), err}
	close(l.changed)
	l.changed = make(chan struct{})
}

// sends notes the length of a subject before it is sent.
func (l *link) sends(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, len(subject))
}

func (l *link) longestSubject() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
}

// refusedSince is the error of a subject that was refused since then, or nil; changed is closed by
// the next refusal.
func (l *link) refusedSince(subject string, then time.Time) (changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r, any := l.refused[subject]; any && !r.at.Before(then) {
		return nil, r.err
	}
	return l.changed, nil
}

// connected is nil, or why there is no connection.
func (l *link) connected() error {
	conn := l.js.Conn()
	switch last := conn.LastError(); {
	case conn.IsConnected():
		return nil
	case last != nil:
		return fmt.Errorf("outboxnats: not connected: %v: %w", conn.Status(), last)
	}
	return fmt.Errorf("outboxnats: not connected: %v", conn.Status())
}
