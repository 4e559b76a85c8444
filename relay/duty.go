package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// duty is what a relay does now and then on the connection of its heartbeat.
type duty struct {
	name string
	// run does a part that is bounded by its context, and says when the next one is due.
	run  func(ctx context.Context) (wait time.Duration, err error)
	next time.Time
	// refused: PostgreSQL has refused the latest part, and the log knows.
	refused bool
}

// dutyTimeout bounds each part, so that no beat is late.
const dutyTimeout = 1500 * time.Millisecond

// dutyRest is how long a duty rests that PostgreSQL refused: the others go on.
const dutyRest = 10 * time.Second

// work does the duties that are due until it is time for the next beat; what has been due for longest comes first. The error
// is that of a lost connection.
func (h *heartbeat) work(ctx context.Context, nextBeat time.Time) error {
	for time.Now().Before(nextBeat) && ctx.Err() == nil {
		d := h.nextDuty()
		if d.next.After(time.Now()) {
			return nil
		}
		if err := h.do(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// nextDuty is the one that has been due for longest, or will be due first.
func (h *heartbeat) nextDuty() *duty {
	d := h.duties[0]
	for _, other := range h.duties {
		if other.next.Before(d.next) {
			d = other
		}
	}
	return d
}

func (h *heartbeat) do(ctx context.Context, d *duty) error {
	part, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	wait, err := d.run(part)
	if err == nil {
		d.next, d.refused = time.Now().Add(wait), false
		return nil
	}
	d.next = time.Now().Add(takeoverInterval)
	if pgerr.Code(err) == "" || pgerr.Lost(err) {
		return err
	}
	if pgerr.Passing(err) {
		h.r.log.Debug("outbox: upkeep", "part", d.name, "error", safeText(err))
		return nil
	}
	d.next = time.Now().Add(dutyRest)
	if !d.refused {
		h.r.log.Warn("outbox: PostgreSQL refuses a part of the relay's upkeep; it is tried again", "part", d.name, "error", safeText(err))
	}
	d.refused = true
	return nil
}

// inTx runs f in a READ COMMITTED transaction on the heartbeat's connection. A relay that freezes in it lets its locks go.
func (h *heartbeat) inTx(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.begin(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+ms(bookkeeping)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// begin is inTx for an f that limits itself before it locks anything.
func (h *heartbeat) begin(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	return h.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := f(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}
