package outboxamqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// closeTimeout bounds the handshake that ends a connection.
	closeTimeout = 2 * time.Second
	// grace is how long after its context a call may still be with the library.
	grace = 500 * time.Millisecond
)

// conn is a connection to the broker. It is safe for concurrent use.
type conn struct {
	*amqp.Connection
	raw net.Conn

	mu      sync.Mutex
	reason  string        // of the broker, to block the connection
	blocked chan struct{} // closed while the connection is blocked
}

// dial connects. The library has no context, so the socket is closed when ctx ends.
func (d *dialing) dial(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	c := &conn{blocked: make(chan struct{})}
	stop := func() bool { return true }
	config := d.copied()
	dial := config.Dial
	config.Dial = func(network, address string) (raw net.Conn, err error) {
		if dial != nil {
			raw, err = dial(network, address)
		} else {
			raw, err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
		if err == nil {
			c.raw = raw
			stop = context.AfterFunc(ctx, c.kill)
		}
		return raw, err
	}
	connection, err := amqp.DialConfig(d.url, config)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if c.raw != nil {
			c.kill()
		}
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("outboxamqp: connect to %s: %w", d.name, err)
	}
	c.Connection = connection
	return c, nil
}

// kill closes the socket, which ends all that waits for the broker.
func (c *conn) kill() { _ = c.raw.Close() }

// guard kills the connection if ctx ends before release is called. The library's calls have no
// context, and wait for as long as the broker does not read or answer.
func (c *conn) guard(ctx context.Context) (release func()) {
	released := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-released:
		case <-time.After(grace):
			c.kill()
		}
	})
	return func() {
		stop()
		close(released)
	}
}

// end closes the connection in order, unless the broker does not answer.
func (c *conn) end() {
	_ = c.CloseDeadline(time.Now().Add(closeTimeout)) // an error means that it was closed before
	c.kill()
}

// watch follows the connection until it is closed. The channels were made by NotifyBlocked and
// NotifyClose.
func (c *conn) watch(log *slog.Logger, blocks <-chan amqp.Blocking, closes <-chan *amqp.Error) {
	for b := range blocks {
		c.mu.Lock()
		was := c.reason
		switch {
		case b.Active && was == "":
			c.reason = cmp.Or(b.Reason, "no reason given")
			close(c.blocked)
			log.Warn("outboxamqp: connection blocked", "reason", b.Reason)
		case !b.Active && was != "":
			c.reason, c.blocked = "", make(chan struct{})
			log.Info("outboxamqp: connection unblocked")
		}
		c.mu.Unlock()
	}
	if err := <-closes; err != nil {
		log.Warn("outboxamqp: connection lost", "error", err)
	}
}

// block returns a channel that is closed while the broker blocks the connection, and why it does.
func (c *conn) block() (blocked <-chan struct{}, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked, c.reason
}

// unblocked returns an error while the broker blocks the connection.
func (c *conn) unblocked() error {
	if _, reason := c.block(); reason != "" {
		return fmt.Errorf("outboxamqp: the broker blocks the connection: %s", reason)
	}
	return nil
}

// knows checks that an exchange exists.
func (c *conn) knows(exchange string) error {
	ch, err := c.Channel()
	if err != nil {
		return fmt.Errorf("outboxamqp: open a channel: %w", err)
	}
	defer ch.Close()
	if exchange == "" {
		return nil
	}
	if err := ch.ExchangeDeclarePassive(exchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
		return fmt.Errorf("outboxamqp: exchange %q: %w", exchange, err)
	}
	return nil
}
