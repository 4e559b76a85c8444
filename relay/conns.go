package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	statementTimeout = 10 * time.Second // of each statement of the relay's own
	idleTimeout      = 15 * time.Second // of a transaction of the relay's own, each of whose statements follows at once
	replyTimeout     = 30 * time.Second // to BEGIN, COMMIT and ROLLBACK; COMMIT may have to wait for a standby
	beginTries       = 4
	conflictTries    = 3
	trusted          = time.Second // for how long an idle connection is believed to live without asking
	feedAgain        = 10 * time.Millisecond
)

// conns keeps the connections of the workers between two claims. database/sql would close most of them,
// as it keeps two idle ones by default. A connection is in use by the holder of one slot, or idle here.
type conns struct {
	db      *sql.DB
	several bool // its driver takes several statements in one message; set before the first claim
	// untimed lifts transaction_timeout, where the server has it, from a transaction that a handler works in: the
	// handler's own timeout bounds that. Set before the first claim.
	untimed string
	mu      sync.Mutex
	idle    []idleConn
	asking  []int64 // one for each call that asks the pool: its WaitCount at the call's begin, ascending
	feeding bool    // feed is called again soon
	closed  bool    // put gives back to the pool: for whatever outlives the run

	sessions map[any]string // what puts the session back, by the driver's connection

	releasing sync.WaitGroup
}

type idleConn struct {
	*sql.Conn
	since time.Time
}

func newConns(db *sql.DB) *conns { return &conns{db: db} }

func (c *conns) get(ctx context.Context) (*sql.Conn, error) {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			waits := c.db.Stats().WaitCount
			c.asking = append(c.asking, waits)
			c.mu.Unlock()
			conn, err := living(ctx, c.db)
			c.mu.Lock()
			i := slices.Index(c.asking, waits)
			c.asking = slices.Delete(c.asking, i, i+1)
			c.mu.Unlock()
			return conn, err
		}
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if (time.Since(conn.since) < trusted || conn.PingContext(ctx) == nil) && reset(ctx, conn.Conn) {
			boundReplies(conn.Conn)
			return conn.Conn, nil
		}
		drop(conn.Conn)
	}
}

// living takes a connection from the pool and asks whether it lives. After a restart of the server a pool is full of
// connections that do not, and each would be an error of its own.
func living(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	for tries := db.Stats().Idle + 2; ; tries-- {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, pgerr.WithoutDSN(err)
		}
		if err = conn.PingContext(ctx); err == nil {
			boundReplies(conn)
			return conn, nil
		}
		drop(conn)
		if tries <= 1 || !pgerr.Lost(err) || ctx.Err() != nil {
			return nil, err
		}
	}
}

// boundReplies limits the replies to BEGIN, COMMIT and ROLLBACK, which have no context, in a pool of
// outbox.Open. ResetSession lifts the limit.
func boundReplies(conn *sql.Conn) {
	_ = conn.Raw(func(c any) error {
		if c, ok := c.(interface{ BoundReplies(time.Duration) }); ok {
			c.BoundReplies(replyTimeout)
		}
		return nil
	})
}

func (c *conns) put(conn *sql.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return
	}
	c.idle = append(c.idle, idleConn{conn, time.Now()})
	c.feed()
}

// feed gives an idle connection to the pool if a call of get may wait for the pool's limit: a wait has begun since
// that call did. For a call that dials it gives none, as the pool would close it. A call may begin to wait later, so
// feed is repeated while there is one.
func (c *conns) feed() {
	if n := len(c.idle); n > 0 && len(c.asking) > 0 && c.asking[0] < c.db.Stats().WaitCount {
		_ = c.idle[n-1].Close()
		c.idle = c.idle[:n-1]
	}
	if c.feeding || len(c.idle) == 0 || len(c.asking) == 0 {
		return
	}
	c.feeding = true
	time.AfterFunc(feedAgain, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.feeding = false
		c.feed()
	})
}

func (c *conns) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.release()
	c.releasing.Wait()
}

// release gives the idle connections back to the pool.
func (c *conns) release() {
	for _, conn := range c.take() {
		_ = conn.Close()
	}
}

// discard closes the idle connections: one has proved to be dead, and the others may be as well.
func (c *conns) discard() {
	for _, conn := range c.take() {
		drop(conn.Conn)
	}
}

func (c *conns) take() []idleConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := c.idle
	c.idle = nil
	return idle
}

// drop closes the connection itself, whatever state it is in.
func drop(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// begin starts a READ COMMITTED transaction, which the end of ctx does not roll back: a rollback in the
// middle of a drain would run the task again. The caller ends it and then calls put or drop.
func (c *conns) begin(ctx context.Context) (*sql.Conn, *sql.Tx, error) {
	for try := 1; ; try++ {
		conn, err := c.get(ctx)
		if err != nil {
			return nil, nil, err
		}
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err == nil {
			return conn, tx, nil
		}
		drop(conn)
		if try == beginTries || !pgerr.Lost(err) || pgerr.Code(err) != "" {
			return nil, nil, err
		}
	}
}

// inTx runs f in a transaction of the relay's own. Its error may be an unknown outcome, so f must be
// harmless when repeated.
func (c *conns) inTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, tx, err := c.begin(ctx)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, letGo); err == nil {
		err = f(ctx, tx)
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		_ = tx.Rollback()
		drop(conn)
		return err
	}
	c.put(conn)
	return nil
}

// held is one connection that a loop keeps for itself. It is not for concurrent use.
type held struct {
	conns *conns
	conn  *sql.Conn
	used  time.Time
}

// do runs f on the connection, dialling if there is none, and drops it after an error but one that PostgreSQL said: f leaves no
// transaction open. A held connection never repeats a statement, as a *sql.DB does; f is repeated only after a conflict with another transaction, where
// these are serializable by default.
func (h *held) do(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if h.conn != nil && time.Since(h.used) > trusted && h.conn.PingContext(ctx) != nil {
		h.drop()
	}
	if h.conn == nil {
		conn, err := h.conns.get(ctx)
		if err != nil {
			return err
		}
		h.conn = conn
	}
	err := f(ctx, h.conn)
	for try := 1; try < conflictTries && pgerr.Conflict(err); try++ {
		err = f(ctx, h.conn)
	}
	h.used = time.Now()
	if c := pgerr.Code(err); err != nil && (c == "" || c == "57014" || pgerr.Lost(err)) { // drivers break it to cancel a statement
		h.drop()
	}
	return err
}

func (h *held) drop() {
	drop(h.conn)
	h.conn = nil
}

func (h *held) close() {
	if h.conn != nil {
		_ = h.conn.Close()
		h.conn = nil
	}
}

// newUUID is a random (version 4) UUID.
func newUUID() string {
	high, low := rand.Uint64()&^(0xf<<12)|4<<12, rand.Uint64()&^(3<<62)|2<<62
	const digits = "0123456789abcdef"
	var b [36]byte
	for i, at := range [...]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34} {
		octet := byte(high >> (56 - 8*(i%8)))
		if i >= 8 {
			octet = byte(low >> (56 - 8*(i%8)))
		}
		b[at], b[at+1] = digits[octet>>4], digits[octet&0xf]
	}
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
