package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

const leaseSQL = `/* outbox: lease */
SELECT tasks, xid FROM outbox.lease_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`

// leaseNext is a claim of up to limit leased tasks: a few from each pivot on, if there are some,
// and then from the watermark of the lane on, nil for its start.
type leaseNext struct {
	limit     int
	watermark *plan.Position
	pivots    []plan.Position // of the same priority and attempt
	lead      int             // most tasks from each of them
	started   int             // of the lane's watermarks
}

// args are the arguments of leaseSQL for up to limit tasks.
func (n leaseNext) args(h *handler.Handler, limit int, relayID, token string) []any {
	registered, perMS, margin := rowLease(h)
	from, pivot := plan.LaneStart, plan.Position{}
	if n.watermark != nil {
		from = *n.watermark
	}
	ids := make([]int64, len(n.pivots))
	for i, p := range n.pivots {
		ids[i], pivot = p.TaskID, p
	}
	return []any{h.Type, limit, relayID, token, registered, perMS, margin, from.Priority, from.Attempt, from.TaskID, store.BigintArray(ids), pivot.Priority, pivot.Attempt, n.lead, pivotIDSpan}
}

// lease claims up to n.limit tasks for a Leased handler, or up to allowed, if there are only so
// many slots for its type: when it returns them, they are committed as leased by this relay under
// the token. found is called before the commit when there are some, unless the type has slots.
func (l *leases) lease(ctx context.Context, h *handler.Handler, n leaseNext, found func([]*leasedRun)) (runs []*leasedRun, token string, allowed int, err error) {
	for try := 1; ; try++ {
		began := time.Now()
		runs, token, allowed, err = l.leaseOnce(ctx, h, n, found)
		had := time.Now()
		for _, x := range runs {
			x.row.LeasedAt, x.claimTook = began, had.Sub(began)
		}
		if err == nil && allowed > 0 {
			l.r.tellClaim(h, len(runs), began, had)
		}
		switch {
		case len(runs) > 0:
			return runs, token, allowed, err
		case pgerr.Code(err) == "54000" && n.limit > 1: // the text of so many does not fit: one fits always
			n.limit, n.pivots = 1, nil
			continue
		}
		// For all of SKIP LOCKED a claim can wait for another transaction: where one that it found
		// at work on a row ends in that moment, and the row's next version is being changed
		// already. Two can wait for each other then.
		if !pgerr.Conflict(err) || try == pg.ConflictTries {
			return runs, token, allowed, err
		}
	}
}

func (l *leases) leaseOnce(ctx context.Context, h *handler.Handler, n leaseNext, found func([]*leasedRun)) (runs []*leasedRun, token string, allowed int, err error) {
	token, allowed = store.NewUUID(), n.limit
	var xid string
	each := func(values []driver.Value) (err error) {
		xid = pg.Text(values[1])
		runs, err = leasedRows(pg.Text(values[0]), h, allowed)
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if h.MaxRunningTotal > 0 {
		err = l.r.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			runs, allowed = nil, 0
			slots, err := l.r.LockSlots(ctx, h.Type, tx, n.limit)
			if err != nil || len(slots) == 0 {
				return err
			}
			allowed = len(slots)
			if err := pg.QueryTx(ctx, tx, l.r.SQL(leaseSQL), n.args(h, allowed, l.r.RelayID, token), each); err != nil {
				return err
			}
			return l.r.FillSlots(ctx, h.Type, tx, slots, rowsIn(runs), token)
		})
	} else {
		// COMMIT follows the rows: no claim is committed whose tasks this relay has not read.
		err = l.r.Conns.InMessages(ctx, pg.BeginSQL, l.r.SQL(leaseSQL), n.args(h, allowed, l.r.RelayID, token), false, func(values []driver.Value) error {
			err := each(values)
			if err == nil && len(runs) > 0 {
				found(runs)
			}
			return err
		})
	}
	if err != nil && len(runs) > 0 {
		l.release(rowsIn(runs), token, xid) // the commit's outcome may be unknown
	}
	return runs, token, allowed, err
}
