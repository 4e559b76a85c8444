package pg

import (
	"context"
	"database/sql"
	"time"

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
