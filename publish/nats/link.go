package outboxnats

import (
	"errors"
	"fmt"
	neturl "net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

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
