package pg

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Dedicated is one connection that a loop keeps for itself. It is not for concurrent use.
type Dedicated struct {
	pool *Pool
	conn *sql.Conn
	used time.Time
}

func NewDedicated(c *Pool) Dedicated { return Dedicated{pool: c} }

// Do runs f on the connection, see Pool.Own.
func (h *Dedicated) Do(ctx context.Context, f func(ctx context.Context, q Querier) error) error {
	return h.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return h.pool.Own(ctx, conn, func(q Querier) error { return f(ctx, q) })
	})
}

// on runs f on the connection, and dials if there is none. f leaves no transaction open. An error
// without a SQLSTATE drops the connection. A Dedicated never repeats a statement, as a *sql.DB
// does. It repeats f only after a conflict with another transaction, where transactions are
// serializable by default.
func (h *Dedicated) on(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, StatementTimeout)
	defer cancel()
	if h.conn != nil && time.Since(h.used) > trusted && h.conn.PingContext(ctx) != nil {
		h.drop()
	}
	if h.conn == nil {
		conn, err := h.pool.Get(ctx)
		if err != nil {
			return err
		}
		h.conn = conn
	}
	err := f(ctx, h.conn)
	for try := 1; try < ConflictTries && pgerr.Conflict(err); try++ {
		err = f(ctx, h.conn)
	}
	h.used = time.Now()
	// To cancel a statement, which is 57014, drivers break its connection.
	if c := pgerr.Code(err); err != nil && (c == "" || c == "57014" || pgerr.Lost(err)) {
		h.drop()
	}
	return err
}

// InTx runs f in a READ COMMITTED transaction on the connection, which commits asynchronously. A
// relay that freezes in it lets its locks go.
func (h *Dedicated) InTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.InBareTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		const settings = "SELECT set_config('idle_in_transaction_session_timeout', $1, true), " + CommitAsync
		if _, err := tx.ExecContext(ctx, settings, Millis(Bookkeeping)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// InBareTx is InTx for an f that makes these settings before it locks anything.
func (h *Dedicated) InBareTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := h.pool.Guard(ctx, tx); err != nil {
			return err
		}
		if err := f(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}

func (h *Dedicated) drop() {
	Drop(h.conn)
	h.conn = nil
}

func (h *Dedicated) Close() {
	if h.conn != nil {
		_ = h.conn.Close()
		h.conn = nil
	}
}

// Broadcast tells all waiting loops that PostgreSQL has answered after an error.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil if nobody waits
}

// await returns a channel that the next Send closes.
func (b *Broadcast) await() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send ends the pauses of all waiting loops.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Pace is how a loop other than the dispatcher waits while its connection fails: up to 2 s, or
// until PostgreSQL has answered another loop. It is not the dispatcher's Outage: with the
// dispatcher's short pauses a relay's five loops would dial 15 to 30 times a second.
type Pace struct {
	signal   *Broadcast      // that PostgreSQL has answered
	wake     func()          // lets the dispatcher poll
	backoff  retry.Backoff   // nil without a failure
	Answered <-chan struct{} // ends the pause; nil without a failure
}

// NewPace waits for a signal, and calls wake at the first failure and at its end.
func NewPace(signal *Broadcast, wake func()) Pace { return Pace{signal: signal, wake: wake} }

// Try begins a try. An answer to another loop in its middle ends the pause after it.
func (p *Pace) Try() { p.Answered = p.signal.await() }

// Fail returns how long the loop is to wait. The dispatcher finds out about the first failure, and
// when it is over.
func (p *Pace) Fail() time.Duration {
	if p.backoff == nil {
		doubling := retry.NewExponential(50 * time.Millisecond)
		p.backoff = retry.WithJitterPercent(30, retry.WithCappedDuration(2*time.Second, doubling))
		p.wake()
	}
	wait, _ := p.backoff.Next()
	return wait
}

// OK ends the pauses of all loops after a failure.
func (p *Pace) OK() {
	p.Answered = nil
	if p.backoff != nil {
		p.backoff = nil
		p.signal.Send()
		p.wake()
	}
}
