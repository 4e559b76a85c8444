package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// stepLeased leases one task, runs its handler outside the Stepper's own transactions, and ends the
// lease.
func (s *Stepper) stepLeased(ctx context.Context, h *handler.Handler) ([]Run, error) {
	token := store.NewUUID()
	t, err := s.lease(ctx, h, token)
	if err != nil || t == nil {
		return nil, err
	}
	if t.Attempt > t.Max {
		return s.finish(ctx, h, t, token, lostVerdict(t))
	}
	limited, release := newLimited(ctx)
	defer release()
	l := &stepLease{s: s, h: h, row: t, token: token, ctx: limited}
	call := &store.Task{}
	t.Fill(call, s.store.Identity, t.Attempt)
	call.Lease = l
	if timeout := timeoutOf(h, t); timeout > 0 {
		l.ctx.endAt(time.Now().Add(timeout), timedOut(timeout))
	}
	out := callHandler(l.ctx, h, nil, handler.Claim{}, []*store.Task{call})
	l.ctx.cancel(nil)
	if out.abandoned {
		return nil, &Misuse{Type: h.Type, TaskID: t.ID, Text: misuseAbandoned}
	}
	if l.misuse != nil {
		return nil, l.misuse
	}
	if v := l.completed.Load(); v != nil {
		return []Run{runOf(t, t.Attempt, *v)}, nil
	}
	_, verdicts := decide(s.newEnding(h, out), []*store.Row{t})
	return s.finish(ctx, h, t, token, verdicts[0])
}

// lease claims the next task of the type, if there is one, and counts the attempt.
func (s *Stepper) lease(ctx context.Context, h *handler.Handler, token string) (t *store.Row, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		c, err := s.store.LeaseWithin(ctx, tx, leaseTerms(h, token), plan.Start{}, 1)
		if err != nil || len(c.Rows) == 0 {
			return err
		}
		t = c.Rows[0]
		if t.LostBy == "" {
			return nil
		}
		t.Attempt++
		_, err = s.store.BeginSuspects(ctx, tx, []int64{t.ID}, token)
		return err
	})
	return t, err
}

// finish ends a lease. Nobody but the handler can have taken it away.
func (s *Stepper) finish(ctx context.Context, h *handler.Handler, t *store.Row, token string, v verdict) ([]Run, error) {
	end := newTransition(h, t, token, v)
	err := s.in.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.store.EndLeasesWithin(ctx, tx, []*store.LeaseEnd{&end.end}); err != nil {
			return err
		}
		if !end.end.Held {
			return &Misuse{Type: t.TaskType, TaskID: t.ID, Text: "the handler took its lease away, or the task is gone"}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []Run{runOf(t, min(t.Attempt, t.Max), v)}, nil
}

// stepLease is a Stepper's hold on one task.
type stepLease struct {
	s         *Stepper
	h         *handler.Handler
	row       *store.Row
	token     string
	ctx       *limited // of the handler
	completed atomic.Pointer[verdict]
	misuse    *Misuse // of a Complete
}

// Extend implements outbox.Lease. Nobody takes the task over, so the context alone matters.
func (l *stepLease) Extend(ctx context.Context, d time.Duration) error {
	for _, c := range []context.Context{l.ctx, ctx} {
		if err := context.Cause(c); err != nil {
			return fmt.Errorf("relay: extend task %d: %w", l.row.ID, err)
		}
	}
	l.ctx.extend(time.Now().Add(d), timedOut(d))
	return nil
}

// Complete implements outbox.Lease, as a relay's does.
func (l *stepLease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("relay: complete task %d: %w", l.row.ID, err) }
	end := &verdict{outcome: Done, done: true}
	err := l.s.in.InTx(ctx, func(tx *sql.Tx) error {
		d := newRemoval(&l.s.store, l.h, l.row, l.token)
		d.within(tx)
		switch err := d.take(ctx); {
		case errors.Is(err, outbox.ErrLeaseLost):
			return fmt.Errorf("%w: task %d", err, l.row.ID)
		case err != nil:
			return fail(err)
		}
		var err error
		if d.again, err = resultAgain(l.h, l.row.ID, fn(tx)); err != nil {
			if broke := d.exclusively(d.undo); broke != nil && endedTransaction(pgerr.Code(broke), broke) {
				return misuse(l.h, l.row.ID, broke)
			}
			return err
		}
		if d.again != nil {
			end = &verdict{outcome: RunAgain, change: nextIteration(*d.again)}
		}
		switch released, err := d.keep(); {
		case err == nil:
			return nil
		case released:
			return fail(err)
		case !isBroken(err):
			return fail(refusedBy(err))
		default:
			return fail(misuse(l.h, l.row.ID, err))
		}
	})
	if err == nil {
		l.completed.Store(end)
	} else {
		errors.As(err, &l.misuse)
	}
	return err
}
