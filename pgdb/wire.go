package pgdb

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/lib/pq"
)

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
