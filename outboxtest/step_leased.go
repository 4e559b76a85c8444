package outboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/tasklease"
)

// stepLeased leases one task, runs its handler outside the stepper's own transactions, and ends the
// lease.
func (s *stepper) stepLeased(ctx context.Context, h *handler.Handler) ([]step, error) {
	token := store.NewUUID()
	t, err := s.lease(ctx, h, token)
	if err != nil || t == nil {
		return nil, err
	}
	if v, buried := decide.Buried(t, store.Fresh); buried {
		return s.finish(ctx, h, t, token, v)
	}
	limited, release := call.ContextOf(ctx)
	defer release()
	l := &stepLease{s: s, h: h, row: t, token: token, ctx: limited}
	task := &store.Task{}
	t.Fill(task, s.store.Identity, t.Begun())
	*tasklease.Of(task) = l
	if timeout := decide.Timeout(h, t); timeout > 0 {
		l.ctx.EndAt(time.Now().Add(timeout), call.TimedOut(timeout))
	}
	out := call.Run(limited, func(ctx context.Context) error { return h.Run(ctx, nil, handler.Claim{}, []*store.Task{task}) })
	l.ctx.Cancel(nil)
	if out.Abandoned {
		return nil, newMisuse(h.Type, t.ID, misuseAbandoned)
	}
	if l.misuse != nil {
		return nil, l.misuse
	}
	if v := l.completed.Load(); v != nil {
		return []step{stepOf(t, t.Begun(), *v)}, nil
	}
	_, verdicts := s.newRun(h, out).Tasks([]*store.Row{t})
	return s.finish(ctx, h, t, token, verdicts[0])
}

// lease claims the next task of the type, if there is one, and counts the attempt.
func (s *stepper) lease(ctx context.Context, h *handler.Handler, token string) (t *store.Row, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		c, err := s.store.LeaseWithin(ctx, tx, leaserun.Terms(h, token), plan.Start{}, 1)
		if err != nil || len(c.Rows) == 0 {
			return err
		}
		t = c.Rows[0]
		if t.LostBy == "" {
			return nil
		}
		_, err = s.store.BeginSuspects(ctx, tx, []int64{t.ID}, token)
		return err
	})
	return t, err
}

// finish ends a lease. Nobody but the handler can have taken it away.
func (s *stepper) finish(ctx context.Context, h *handler.Handler, t *store.Row, token string,
	v decide.Verdict) ([]step, error) {
	end := leaserun.EndOf(h, t, token, v)
	err := s.in.InTx(ctx, func(tx *sql.Tx) error {
		if err := s.store.EndLeasesWithin(ctx, tx, []*store.LeaseEnd{&end}); err != nil {
			return err
		}
		if !end.Held {
			return newMisuse(t.TaskType, t.ID, "the handler took its lease away, or the task is gone")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []step{stepOf(t, min(t.Begun(), t.Max), v)}, nil
}

// stepLease is a stepper's hold on one task.
type stepLease struct {
	s         *stepper
	h         *handler.Handler
	row       *store.Row
	token     string
	ctx       *call.Context // of the handler
	completed atomic.Pointer[decide.Verdict]
	misuse    *misuse // of a Complete
}

// Extend implements tasklease.Lease. Nobody takes the task over, so the context alone matters.
func (l *stepLease) Extend(ctx context.Context, d time.Duration) error {
	for _, c := range []context.Context{l.ctx, ctx} {
		if err := context.Cause(c); err != nil {
			return pgerr.Within(fmt.Sprintf("relay: extend task %d", l.row.ID), err)
		}
	}
	l.ctx.Extend(time.Now().Add(d), call.TimedOut(d))
	return nil
}

// Complete implements tasklease.Lease, as a relay's does.
func (l *stepLease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fail := func(err error) error { return pgerr.Within(fmt.Sprintf("relay: complete task %d", l.row.ID), err) }
	var became decide.Verdict
	err := l.s.in.InTx(ctx, func(tx *sql.Tx) error {
		d, err := leaserun.Remove(ctx, &l.s.store, apptx.Within(&l.s.store, tx), l.h, l.row, l.token)
		switch {
		case errors.Is(err, outbox.ErrLeaseLost):
			return fmt.Errorf("%w: task %d", err, l.row.ID)
		case err != nil:
			return fail(err)
		}
		failure := d.Call(fn)
		end := d.End(failure)
		became = d.Verdict()
		switch {
		case end.How == apptx.Committed:
			return nil
		case failure != nil && end.How != apptx.EndedByCode:
			return failure
		case end.How == apptx.Failed:
			return fail(end.Err)
		case end.How == apptx.RolledBack:
			return fail(end.Failure)
		}
		return misuseBy(l.h, l.row.ID, end)
	})
	if err == nil {
		l.completed.Store(&became)
	} else {
		errors.As(err, &l.misuse)
	}
	return err
}
