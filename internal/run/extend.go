package run

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// A row without an end stays so: its lease is the relay's.
const ExtendSQL = `/* outbox: extend a lease */
UPDATE outbox.task SET leased_until = CASE WHEN leased_until IS NOT NULL
         THEN GREATEST(leased_until, clock_timestamp() + $3::bigint * interval '1 microsecond') END
 WHERE task_id = $1 AND lease_token = $2::uuid`

// Extend implements outbox.Lease. The row goes first: the handler must not go on beyond it.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	fail := func(err error) error { return fmt.Errorf("relay: extend task %d: %w", l.row.ID, err) }
	ended := func() error {
		return cmp.Or(context.Cause(&l.ctx), context.Cause(ctx))
	}
	l.extending.Lock() // a worker has one connection
	defer l.extending.Unlock()
	if err := ended(); err != nil {
		return fail(err)
	}
	if l.completing.Load() > 0 {
		return fail(errors.New("its Complete is under way"))
	}
	sent, until, cause := time.Now(), leaseFor(d), error(timedOut(d))
	if l.noHeartbeat() {
		until, cause = d, errRanOut
	}
	var held int64
	err := l.r.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, l.r.SQL(ExtendSQL), l.row.ID, l.token, until.Microseconds())
		if err == nil {
			held, err = result.RowsAffected()
		}
		return err
	})
	l.unextended.Store(ended() == nil && pgerr.Blameless(err))
	switch {
	case err != nil:
		if cause := ended(); cause != nil { // in the middle: drivers say a bad connection, or less
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fail(err)
	case held == 0:
		if l.completed.Load() == nil {
			l.ctx.cancel(outbox.ErrLeaseLost)
		}
		return fail(outbox.ErrLeaseLost)
	}
	l.ctx.extend(sent.Add(d), cause)
	if err := context.Cause(&l.ctx); err != nil { // it ended meanwhile
		return fail(err)
	}
	return nil
}
