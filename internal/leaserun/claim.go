package leaserun

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// Terms are those of a claim of h's tasks.
func Terms(h *handler.Handler, token string) store.LeaseTerms {
	t := store.LeaseTerms{TaskType: h.Type, MaxAttempts: h.MaxAttempts, Token: token}
	if h.Lease > 0 { // without heartbeats the lease is the timeout
		t.Length, t.Share = h.Lease, 1000
		return t
	}
	if h.Timeout > 0 {
		t.Length = leaseFor(h.Timeout)
	}
	t.Margin = leaseFor(0)
	t.Share = (leaseFor(time.Second) - t.Margin).Microseconds() / 1000
	return t
}

// Lease claims up to c.Limit tasks for a Leased handler, or up to allowed, if there are only so
// many slots for its type: when it returns them, they are committed as leased by this relay. found
// is called before the commit when there are some, unless the type has slots.
func (l *Leases) Lease(ctx context.Context, h *handler.Handler, c plan.Claim,
	found func([]*Run)) (runs []*Run, allowed int, err error) {
	for try := 1; ; try++ {
		began := time.Now()
		runs, allowed, err = l.leaseOnce(ctx, h, c, found)
		had := time.Now()
		for _, x := range runs {
			x.claim = handler.Claim{Began: began, Ended: had, Log: l.Report.Log}
		}
		if err == nil && allowed > 0 {
			l.Report.Claimed(h, len(runs), began, had)
		}
		// For all of SKIP LOCKED a claim can wait for another transaction: where one that it found
		// at work on a row ends in that moment, and the row's next version is being changed
		// already. Two can wait for each other then.
		if len(runs) > 0 || !pgerr.Conflict(err) || try == pg.ConflictTries {
			return runs, allowed, err
		}
	}
}

func (l *Leases) leaseOnce(ctx context.Context, h *handler.Handler, c plan.Claim,
	found func([]*Run)) (runs []*Run, allowed int, err error) {
	terms, claimed := Terms(h, store.NewUUID()), store.Claimed{}
	allowed = c.Limit
	ctx = context.WithoutCancel(ctx)
	l.mine.claim(terms.Token)
	if h.MaxRunning > 0 {
		err = l.Store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			claimed, allowed = store.Claimed{}, 0
			slots, err := l.Store.LockSlots(ctx, h.Type, tx, c.Limit)
			if err != nil || len(slots) == 0 {
				return err
			}
			allowed = len(slots)
			if claimed, err = l.Store.LeaseWithin(ctx, tx, terms, c.Start, allowed); err != nil {
				return err
			}
			return l.Store.FillSlots(ctx, h.Type, tx, slots, claimed.Rows, terms.Token)
		})
		runs = l.newRuns(h, terms.Token, claimed.Rows)
	} else {
		claimed, err = l.Store.Lease(ctx, terms, c.Start, c.Limit, func(rows []*store.Row) {
			runs = l.newRuns(h, terms.Token, rows)
			found(runs)
		})
	}
	switch {
	case err == nil:
		l.mine.claimed(terms.Token, claimed.Rows)
	case len(runs) > 0: // the commit's outcome may be unknown
		l.release(runs, claimed.XID, terms.Token)
	default:
		l.mine.claimed(terms.Token, nil)
	}
	return runs, allowed, err
}

func (l *Leases) newRuns(h *handler.Handler, token string, rows []*store.Row) []*Run {
	out := make([]*Run, len(rows))
	for i, r := range rows {
		out[i] = &Run{leases: l, lease: lease{store: l.Store, report: l.Report, h: h, token: token, row: r}}
	}
	return out
}

// release gives a claim back whose commit may have failed or not, once that is known or the relay
// stops.
func (l *Leases) release(runs []*Run, xid, token string) {
	var back []*store.LeaseEnd
	for _, x := range runs {
		r := x.lease.row
		back = append(back, &store.LeaseEnd{Row: r, Token: token, Back: true,
			Change: store.Change{Attempt: r.Attempt}, LostBy: r.LostBy})
	}
	l.results.writing.Go(func() {
		defer l.mine.claimed(token, nil)
		for !l.giveBack(back, xid) {
			select {
			case <-time.After(time.Second):
			case <-l.stopping:
				l.giveBack(back, xid)
				return
			}
		}
	})
}

// giveBack ends the leases of a claim if it was committed. It reports whether that is known.
func (l *Leases) giveBack(back []*store.LeaseEnd, xid string) bool {
	status, err := l.Store.StatusOf(xid)
	if pgerr.Code(err) == "22023" {
		return true // another server has taken over, which never had it
	}
	if err != nil || status != "committed" {
		return err == nil && status != "in progress"
	}
	if err := l.Store.EndLeases(back); err != nil {
		return false
	}
	for _, e := range back {
		if !e.Held {
			l.logLost(e.Row)
		}
	}
	return true
}

// Found is the leased tasks that a claim found.
func Found(runs []*Run) (out plan.Found) {
	for _, x := range runs {
		r := x.lease.row
		out.Add(plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID}, r.RunAt, len(r.Payload))
	}
	return out
}
