package pg

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lib/pq"
)

// ErrNoNotification: LISTEN came through, and a notification to oneself did not.
var ErrNoNotification = errors.New("LISTEN works, but a notification did not arrive: " +
	"does the DSN lead to another database, or through a pooler?")

// Subscription is a connection of its own that listens on one channel. One goroutine uses it.
type Subscription struct {
	Notified <-chan *pq.Notification // closed when the connection is lost
	conn     *pq.ListenerConn
}

// Subscribe connects by a DSN of lib/pq and listens. The caller closes the subscription.
func Subscribe(ctx context.Context, dsn, channel string) (*Subscription, error) {
	dsn, err := bounded(dsn)
	if err != nil {
		return nil, err
	}
	notified := make(chan *pq.Notification, 32)
	conn, err := connect(dsn, notified, ctx.Done())
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, context.Cause(ctx)
	}
	s := &Subscription{Notified: notified, conn: conn}
	if err := s.exec(ctx, "LISTEN "+pq.QuoteIdentifier(channel)); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Ping finds a connection that is lost and does not say so. The caller reads Notified meanwhile, or the
// connection may not come to the answer.
func (s *Subscription) Ping(ctx context.Context) error { return s.exec(ctx, "") }

func (s *Subscription) exec(ctx context.Context, statement string) error {
	replies := make(chan error, 1)
	go func() {
		_, err := s.conn.ExecSimpleQuery(statement)
		replies <- err
	}()
	select {
	case err := <-replies:
		return err
	case <-time.After(pingTimeout):
		return errors.New("LISTEN connection does not answer")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Err is why Notified was closed.
func (s *Subscription) Err() error { return cmp.Or(s.conn.Err(), errors.New("disconnected")) }

// Close closes the connection, and takes what Notified still has.
func (s *Subscription) Close() {
	_ = s.conn.Close()
	for range s.Notified { // it may wait to say one
	}
}
