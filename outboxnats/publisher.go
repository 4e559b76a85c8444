package outboxnats

import (
	"context"
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox/forward"
)

// Config of Connect. The zero Config is the default.
type Config struct {
	// Options of the connection: credentials, TLS, a name. They come after those of Connect.
	Options []nats.Option
}

// maxPending is how many messages wait for their acknowledgement at once: those of 80 workers.
const maxPending = 16_000

// ackTimeout lets go of messages whose acknowledgement never comes; Publish has returned by then.
const ackTimeout = 30 * time.Second

// errClosed is that of a Publisher after Close.
var errClosed = errors.New("outboxnats: the publisher is closed")

// Publisher is a forward.Publisher. It is safe for concurrent use.
type Publisher struct {
	js  jetstream.JetStream
	own *nats.Conn // to close; nil: the app's

	mu       sync.RWMutex // held for reading while a call publishes
	closed   bool
	inFlight sync.WaitGroup
}

// Connect connects to a server or a cluster: the URL may be several, separated by commas. It does not
// wait for a server, and connects again for as long as the Publisher is open. While there is no
// connection nothing is buffered: Publish returns forward.Unavailable.
func Connect(url string, c Config) (*Publisher, error) {
	opts := append([]nats.Option{
		nats.Name("outbox"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
	}, c.Options...)
	conn, err := nats.Connect(url, opts...)
	if bad := (*neturl.Error)(nil); errors.As(err, &bad) {
		err = bad.Err // the rest is the URL, with its password
	}
	if err != nil {
		return nil, fmt.Errorf("outboxnats: connect: %w", err)
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(ackTimeout))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("outboxnats: connect: %w", err)
	}
	return &Publisher{js: js, own: conn}, nil
}

// New publishes over the app's own connection, which Close leaves open. Connect it with
// nats.ReconnectBufSize(-1): a message that waits in a buffer for a new connection may arrive later
// than newer ones of its key. The JetStream needs jetstream.WithPublishAsyncTimeout, and has room for
// 4,000 messages in flight unless jetstream.WithPublishAsyncMaxPending says otherwise.
func New(js jetstream.JetStream) *Publisher { return &Publisher{js: js} }

// Publish is that of forward.Publisher. Too large a message, a subject that no stream takes and what
// the server refuses for good are forward.Permanent. A lost connection, a full stream or disk, a
// cluster without a leader and a late acknowledgement are forward.Unavailable.
func (p *Publisher) Publish(ctx context.Context, events []*forward.Event) []error {
	p.mu.RLock()
	if p.closed {
		p.mu.RUnlock()
		return all(events, forward.Unavailable(errClosed, 0))
	}
	p.inFlight.Add(1)
	p.mu.RUnlock()
	defer p.inFlight.Done()
	if !p.js.Conn().IsConnected() {
		return all(events, forward.Unavailable(errors.New("outboxnats: not connected"), 0))
	}
	errs, failed := make([]error, len(events)), false
	acks := make([]jetstream.PubAckFuture, len(events))
	var stalled error // of the client, which waits for each message that has no room
	for i, e := range events {
		m, err := message(e)
		if err == nil && stalled == nil {
			stalled = ctx.Err()
		}
		if err == nil && stalled == nil {
			acks[i], err = p.js.PublishMsgAsync(m, jetstream.WithMsgID(messageID(e)))
			if errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
				stalled = err
			}
			err = p.classify(ctx, e, err)
		} else if err == nil {
			err = p.classify(ctx, e, stalled)
		}
		errs[i], failed = err, failed || err != nil
	}
	for i, ack := range acks {
		if errs[i] != nil {
			continue
		}
		select {
		case <-ack.Ok():
			continue
		default: // ctx may have ended as well
		}
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			errs[i], failed = p.classify(ctx, events[i], err), true
		case <-ctx.Done():
			errs[i], failed = forward.Unavailable(fmt.Errorf("outboxnats: event %s: no acknowledgement: %w", events[i].ID, ctx.Err()), 0), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

func all(events []*forward.Event, err error) []error {
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// messageID is the Nats-Msg-Id of an event. A stream may have the event of several targets.
func messageID(e *forward.Event) string {
	id := e.Source + "/" + e.ID
	if e.Target != "" {
		id += "/" + e.Target
	}
	return id
}

func message(e *forward.Event) (*nats.Msg, error) {
	if !isSubject(e.To) {
		return nil, forward.Permanent(fmt.Errorf("outboxnats: event %s: %q is no subject: words between dots, without spaces, * and >", e.ID, e.To))
	}
	m := nats.NewMsg(e.To)
	m.Data = e.Data
	m.Header.Set("Content-Type", forward.ContentType)
	for _, h := range e.CloudEvents("ce-") {
		if !strings.HasPrefix(strings.ToLower(h.Name), "nats-") { // those steer JetStream
			m.Header[h.Name] = []string{h.Value}
		}
	}
	return m, nil
}

// isSubject reports whether a message can be published to the subject.
func isSubject(s string) bool {
	if s == "" || strings.ContainsAny(s, " \t\r\n\f*>") {
		return false
	}
	for word := range strings.SplitSeq(s, ".") {
		if word == "" {
			return false
		}
	}
	return true
}

// Ready returns nil if there is a connection and JetStream answers.
func (p *Publisher) Ready(ctx context.Context) error {
	p.mu.RLock()
	closed := p.closed
	p.mu.RUnlock()
	switch {
	case closed:
		return errClosed
	case !p.js.Conn().IsConnected():
		return fmt.Errorf("outboxnats: not connected: %v", p.js.Conn().Status())
	}
	if _, err := p.js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("outboxnats: JetStream does not answer: %w", err)
	}
	return nil
}

// Close waits for the calls of Publish that have begun, and closes the connection, if it is the
// Publisher's own. Later calls return forward.Unavailable.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.inFlight.Wait()
	if p.own != nil {
		p.own.Close()
	}
}
