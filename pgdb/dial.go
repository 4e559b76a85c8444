package pgdb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/guard"
)

// deadPeer is how long a peer may acknowledge nothing.
const deadPeer = 25 * time.Second

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// guarded is an app's dial that may hang, panic or end its goroutine.
func guarded(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, hostTimeout)
		defer cancel()
		conn, err := guard.Within(ctx, func() (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil && conn == nil {
				err = errors.New("it returned no connection")
			}
			return conn, err
		}, func(late net.Conn) { _ = late.Close() })
		if err != nil {
			return nil, fmt.Errorf("pgdb: the Dialer: %w", err)
		}
		return withDeadlines(conn), nil
	}
}

// watchPeer has the system notice a dead peer, if there is a TCP connection below. Like net.Dialer
// it takes a system without these settings, such as OpenBSD, as it is.
func watchPeer(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		setUserTimeout(raw, deadPeer)
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second,
		Count: 3})
}

// withDeadlines is conn with deadlines. The channels of an SSH client have none.
func withDeadlines(conn net.Conn) net.Conn {
	if conn.SetDeadline(time.Time{}) == nil {
		return conn
	}
	return &closing{Conn: conn}
}

// closing is a connection that is closed at its deadline.
type closing struct {
	net.Conn
	passed atomic.Bool

	mu    sync.Mutex
	timer *time.Timer
}

func (c *closing) SetDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.passed.Load() {
		return os.ErrDeadlineExceeded
	}
	if !at.IsZero() {
		c.timer = time.AfterFunc(time.Until(at), func() {
			c.passed.Store(true)
			_ = c.Conn.Close()
		})
	}
	return nil
}

func (c *closing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, c.reason(err)
}

func (c *closing) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, c.reason(err)
}

func (c *closing) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	return c.Conn.Close()
}

// reason is the deadline in place of an error that its end caused.
func (c *closing) reason(err error) error {
	if err != nil && c.passed.Load() {
		return os.ErrDeadlineExceeded
	}
	return err
}
