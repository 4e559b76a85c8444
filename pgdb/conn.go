package pgdb

import (
	"context"
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/guard"
)

// pqConn has the interfaces of a connection of lib/pq.
type pqConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// wiredConn is a connection of lib/pq. It is its own transaction, as lib/pq's is.
type wiredConn struct {
	pqConn
	wire   *wire
	tx     driver.Tx
	cancel context.CancelFunc // of tx's context; nil where nothing bounds it
	bound  time.Duration
}

// BoundReplies limits how long BEGIN, COMMIT and ROLLBACK of database/sql, which know no context,
// wait for their answer, until the connection is given back to its pool. Zero is no limit. A relay
// calls it.
func (c *wiredConn) BoundReplies(d time.Duration) { c.bound = d }

// CheckNamedValue is lib/pq's, which 1.10.9 does not have.
func (c *wiredConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.pqConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// IsValid and ResetSession keep a connection out of the pool whose deadline stays: lib/pq does not
// mind a prepared statement that was cancelled.
func (c *wiredConn) IsValid() bool { return !c.wire.isDoomed() && c.pqConn.IsValid() }

func (c *wiredConn) ResetSession(ctx context.Context) error {
	c.bound = 0
	if c.wire.isDoomed() {
		return driver.ErrBadConn
	}
	return c.pqConn.ResetSession(ctx)
}

func (c *wiredConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.cancel = nil
	if c.bound > 0 {
		ctx, c.cancel = context.WithCancel(ctx)
	}
	err := c.wire.within(c.bound, func() (err error) {
		c.tx, err = c.pqConn.BeginTx(ctx, opts)
		return err
	})
	return c, err
}

// Commit sends a cancel request when its time is up. Where the server waits for a standby that ends
// the wait, and the answer is that the transaction is committed; a backend that is only left would
// wait on, with its locks, for each COMMIT that is given up.
func (c *wiredConn) Commit() error {
	if c.cancel == nil {
		return c.tx.Commit()
	}
	defer c.cancel()
	defer time.AfterFunc(c.bound, c.cancel).Stop()
	return c.wire.lost(c.tx.Commit())
}

func (c *wiredConn) Rollback() error {
	if c.cancel != nil {
		defer c.cancel()
	}
	return c.wire.within(c.bound, c.tx.Rollback)
}

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

const (
	// dialTimeout and hostTimeout are the longest times of one host, of several: until it accepts, and
	// until it is ready.
	dialTimeout = 3 * time.Second
	hostTimeout = 8 * time.Second
	// answerTimeout is how long the server has to answer once a statement was cancelled.
	answerTimeout = 5 * time.Second
)

// wire is the network connection of a connection of lib/pq.
type wire struct {
	dial dialFunc

	mu     sync.Mutex
	conn   net.Conn // the one that was dialled last, until ready
	ready  bool
	doomed bool // its deadline stays
}

var _ pq.DialerContext = (*wire)(nil)

// DialContext dials the connection. Once that is ready it dials a cancel request, which lib/pq
// sends when the context of a call has ended; the connection does not go back to the pool then
// (IsValid).
func (w *wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	began, canceling := time.Now(), w.ready
	if canceling {
		w.doomed = true
		_ = w.conn.SetDeadline(time.Now().Add(answerTimeout))
	}
	w.mu.Unlock()
	conn, err := w.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	watchPeer(conn)
	if canceling {
		return conn, conn.SetDeadline(time.Now().Add(answerTimeout))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil { // another host, or the same without TLS; lib/pq does not always close it
		_ = w.conn.Close()
	}
	w.conn = conn
	if w.doomed { // ctx ended meanwhile
		return conn, conn.SetDeadline(time.Unix(1, 0))
	}
	return conn, conn.SetDeadline(began.Add(hostTimeout))
}

func (w *wire) Dial(network, address string) (net.Conn, error) {
	return w.DialContext(context.Background(), network, address)
}

func (w *wire) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return w.DialContext(ctx, network, address)
}

// breakOff ends the beginning of a connection.
func (w *wire) breakOff() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ready {
		return
	}
	w.doomed = true
	if w.conn != nil {
		_ = w.conn.SetDeadline(time.Unix(1, 0))
	}
}

// connected ends the beginning, and reports whether breakOff was not first.
func (w *wire) connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ready = !w.doomed && w.conn != nil && w.conn.SetDeadline(time.Time{}) == nil
	return w.ready
}

// within calls do, whose wait for an answer ends after d; 0 is no limit.
func (w *wire) within(d time.Duration, do func() error) error {
	if d <= 0 {
		return do()
	}
	if !w.deadline(time.Now().Add(d)) {
		return do()
	}
	err := do()
	w.deadline(time.Time{})
	return w.lost(err)
}

// lost returns driver.ErrBadConn for a deadline that has passed.
func (*wire) lost(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) {
		return driver.ErrBadConn
	}
	return err
}

func (w *wire) isDoomed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.doomed
}

func (w *wire) deadline(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.doomed && w.conn.SetDeadline(at) == nil
}
