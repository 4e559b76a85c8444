package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	// connectTimeout bounds the beginning of a connection, over all hosts, where the caller's context is longer.
	connectTimeout = 15 * time.Second
	// dialTimeout and hostTimeout bound what one host may take, of several: until it accepts, and until it is ready.
	dialTimeout = 3 * time.Second
	hostTimeout = 8 * time.Second
	// deadPeer is how long a peer may acknowledge nothing.
	deadPeer = 25 * time.Second
	// answerTimeout is how long the server has to answer once a statement was cancelled.
	answerTimeout = 5 * time.Second
)

// Open returns a pool of connections of lib/pq that notice when the other side is gone without a word: a host that lost its power, a
// cable, a firewall or a proxy that forgot the connection. lib/pq itself waits for an answer as long as the operating system believes in
// the connection, which is minutes to hours, and the end of a call's context does not end that wait. dsn is lib/pq's: without
// sslmode the connection needs TLS, so for a server without TLS add sslmode=disable. Open does not
// connect; it returns an error, without dsn's text, where dsn is none, or asks for target_session_attrs=prefer-standby: an outbox
// writes.
//
// A connection breaks, and what waits on it fails, when
//   - the other side has acknowledged nothing for 25 s, whether it was sent something or not: TCP keepalive from 10 s on, each 5 s, and on Linux
//     TCP_USER_TIMEOUT, which also ends one whose other side takes nothing more for so long. Elsewhere what was sent is given up when the system gives
//     up; connections by a Unix socket have neither;
//   - a call's context ended, and there is no answer 5 s after the cancel request. A connection whose call was cancelled does not go back to the pool;
//     a transaction on it has those 5 s left;
//   - it is not ready 15 s after its beginning, or when the context of the call that needs it ends. A host that does not accept within 3 s, or is not ready within
//     8 s, makes way for the next one of the connection string.
//
// A statement whose context has no end may take as long as it likes, and so may COMMIT, which may have to wait for a standby. A relay
// cancels its own BEGIN, COMMIT and ROLLBACK after 30 s without an answer, so it needs a pool of this kind to get every worker back. The pool
// is safe for concurrent use. Its limits are those of sql.Open: none, and two idle connections. What [database/sql.Conn.Raw] gives is not lib/pq's own type, so
// pq.SetNoticeHandler and its like do not take it.
func Open(dsn string) (*sql.DB, error) {
	if _, err := pq.NewConnector(dsn); err != nil {
		if pgerr.RepeatsDSN(err.Error()) {
			return nil, errors.New("outbox: Open: not a connection string of lib/pq; what is wrong with it is not shown, as that repeats it")
		}
		return nil, fmt.Errorf("outbox: Open: not a connection string of lib/pq: %w", err)
	}
	if strings.Contains(dsn, "prefer-standby") { // without any host lib/pq tries them for ever, too
		return nil, errors.New("outbox: Open: target_session_attrs=prefer-standby: an outbox writes; use read-write or primary")
	}
	return sql.OpenDB(&connector{dsn}), nil
}

type connector struct{ dsn string }

func (c *connector) Driver() driver.Driver { return &pq.Driver{} }

// Connect has a connector, and so a dialer, for each connection: what it dials later is a cancel request for that one.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	own, err := pq.NewConnector(c.dsn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	w := &wire{}
	own.Dialer(w)
	defer context.AfterFunc(ctx, w.breakOff)()
	conn, err := own.Connect(ctx)
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return nil, err
	}
	pqc, ok := conn.(pqConn)
	if !ok || !w.connected() {
		return nil, errors.Join(driver.ErrBadConn, conn.Close())
	}
	return &wiredConn{pqConn: pqc, wire: w}, nil
}

// wire is what the connections of lib/pq travel on.
type wire struct {
	mu     sync.Mutex
	conn   net.Conn // the one that was dialled last, until ready
	ready  bool
	doomed bool // its deadline stays
}

var _ pq.DialerContext = (*wire)(nil)

// DialContext dials the connection. Once that is ready it dials a cancel request, which lib/pq sends when the context of a call has ended; the
// connection does not go back to the pool then (IsValid).
func (w *wire) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	d.Control = func(network, _ string, raw syscall.RawConn) error {
		if network == "unix" {
			return nil
		}
		setUserTimeout(raw, deadPeer)
		return nil
	}
	w.mu.Lock()
	began, canceling := time.Now(), w.ready
	if canceling {
		w.doomed = true
		_ = w.conn.SetDeadline(time.Now().Add(answerTimeout))
	}
	w.mu.Unlock()
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
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

// lost makes a deadline that has passed what it is for database/sql: a connection that is lost.
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

// pqConn is what a connection of lib/pq implements.
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

// BoundReplies limits how long BEGIN, COMMIT and ROLLBACK of database/sql, which know no context, wait for their answer, until the connection is
// given back to its pool. Zero is no limit. A relay calls it.
func (c *wiredConn) BoundReplies(d time.Duration) { c.bound = d }

// CheckNamedValue is lib/pq's, which 1.10.9 does not have.
func (c *wiredConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.pqConn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// IsValid and ResetSession keep a connection out of the pool whose deadline stays: lib/pq does not mind a prepared statement that was cancelled.
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

// Commit sends a cancel request when its time is up. Where the server waits for a standby that ends the wait, and the answer is that the
// transaction is committed; a backend that is only left would wait on, with its locks, for each COMMIT that is given up.
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
