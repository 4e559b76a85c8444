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

// Do runs f on the connection, dialling if there is none, and drops it after an error but one that
// PostgreSQL said: f leaves no transaction open. A Dedicated never repeats a statement, as a
// *sql.DB does; f is repeated only after a conflict with another transaction, where these are
// serializable by default.
func (h *Dedicated) Do(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
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
	if c := pgerr.Code(err); err != nil && (c == "" || c == "57014" || pgerr.Lost(err)) { // drivers break it to cancel a statement
		h.drop()
	}
	return err
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
