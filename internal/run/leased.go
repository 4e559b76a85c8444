package run

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

const LeaseSQL = `/* outbox: lease */
SELECT tasks, xid FROM outbox.lease_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`

// As the journal, a lease must survive the death of a relay, and not that of the server, which may
// lose those of its last second: their tasks run again, and the results of the first runs are refused.
const beginLease = pg.BeginSQL + "; SET LOCAL synchronous_commit = off"

// LeaseNext is a claim of up to limit leased tasks: a few from each pivot on, if there are some,
// and then from the watermark of the lane on, nil for its start; or by due time from a place on.
type LeaseNext struct {
	Limit     int
	Watermark *plan.Position
	Due       *plan.Due       // nil: in the lane's order
	Pivots    []plan.Position // of the same priority and attempt
	Lead      int             // most tasks from each of them
}

// args are the arguments of leaseSQL for up to limit tasks.
func (n LeaseNext) args(h *handler.Handler, limit int, relayID, token string) []any {
	registered, perMS, margin := rowLease(h)
	from, pivot := plan.LaneStart, plan.Position{}
	if n.Watermark != nil {
		from = *n.Watermark
	}
	var due any
	if n.Due != nil {
		due, from.TaskID = n.Due.RunAt, n.Due.TaskID
	}
	ids := make([]int64, len(n.Pivots))
	for i, p := range n.Pivots {
		ids[i], pivot = p.TaskID, p
	}
	return []any{h.Type, limit, relayID, token, registered, perMS, margin, from.Priority, from.Attempt, from.TaskID, pq.Array(ids), pivot.Priority, pivot.Attempt, n.Lead, idSpan, due}
}

// Lease claims up to n.limit tasks for a Leased handler, or up to allowed, if there are only so
// many slots for its type: when it returns them, they are committed as leased by this relay. found
// is called before the commit when there are some, unless the type has slots.
func (l *Leases) Lease(ctx context.Context, h *handler.Handler, n LeaseNext, found func([]*LeasedRun)) (runs []*LeasedRun, allowed int, err error) {
	for try := 1; ; try++ {
		began := time.Now()
		runs, allowed, err = l.leaseOnce(ctx, h, n, found)
		had := time.Now()
		for _, x := range runs {
			x.claim = handler.Claim{Began: began, Ended: had, Log: l.r.Log}
		}
		if err == nil && allowed > 0 {
			l.r.tellClaim(h, len(runs), began, had)
		}
		// For all of SKIP LOCKED a claim can wait for another transaction: where one that it found
		// at work on a row ends in that moment, and the row's next version is being changed
		// already. Two can wait for each other then.
		if len(runs) > 0 || !pgerr.Conflict(err) || try == pg.ConflictTries {
			return runs, allowed, err
		}
	}
}

func (l *Leases) leaseOnce(ctx context.Context, h *handler.Handler, n LeaseNext, found func([]*LeasedRun)) (runs []*LeasedRun, allowed int, err error) {
	token, xid := store.NewUUID(), ""
	allowed = n.Limit
	each := func(values []driver.Value) (err error) {
		xid = pg.Text(values[1])
		runs, err = leasedRows(pg.Text(values[0]), h, token, allowed)
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if h.MaxRunningTotal > 0 {
		err = l.r.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			runs, allowed = nil, 0
			slots, err := l.r.LockSlots(ctx, h.Type, tx, n.Limit)
			if err != nil || len(slots) == 0 {
				return err
			}
			allowed = len(slots)
			if err := pg.QueryTx(ctx, tx, l.r.SQL(LeaseSQL), n.args(h, allowed, l.r.RelayID, token), each); err != nil {
				return err
			}
			return l.r.FillSlots(ctx, h.Type, tx, slots, rowsIn(runs), token)
		})
	} else {
		// COMMIT follows the rows: no claim is committed whose tasks this relay has not read.
		err = l.r.Conns.InMessages(ctx, beginLease, l.r.SQL(LeaseSQL), n.args(h, allowed, l.r.RelayID, token), false, func(values []driver.Value) error {
			err := each(values)
			if err == nil && len(runs) > 0 {
				found(runs)
			}
			return err
		})
	}
	if err != nil && len(runs) > 0 {
		l.release(runs, xid) // the commit's outcome may be unknown
	}
	return runs, allowed, err
}

// sharedText is how large a claim's text may be for its tasks to keep it for their payloads.
const sharedText = 64 << 10

// leasedRows are the tasks in the text of lease_tasks, in the order of claiming. One text costs a
// driver much less than as many rows.
func leasedRows(tasks string, h *handler.Handler, token string, limit int) (out []*LeasedRun, err error) {
	if tasks == "" {
		return nil, nil
	}
	shared := len(tasks) <= sharedText
	for line := range strings.SplitSeq(tasks, "\n") {
		if !shared {
			line = strings.Clone(line)
		}
		x := &LeasedRun{lease: lease{h: h, token: token, row: store.Row{TaskType: h.Type, Max: h.MaxAttempts}}}
		if err := x.row.FromLine(line); err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b *LeasedRun) int { return a.row.Compare(&b.row) })
	return out, store.TooMany(len(out), limit)
}

func rowsIn(runs []*LeasedRun) []*store.Row {
	out := make([]*store.Row, len(runs))
	for i, x := range runs {
		out[i] = &x.row
	}
	return out
}
