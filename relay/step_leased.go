package relay

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/drain"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// stepLeased leases one task, runs its handler outside the stepper's own transactions, and ends the
// lease.
func (s *stepper) stepLeased(ctx context.Context, h *handler.Handler, _ claimPlan) ([]drain.Run, error) {
	token := store.NewUUID()
	t, err := s.lease(ctx, h, token)
	if err != nil || t == nil {
		return nil, err
	}
	end := func(next transition, result *handler.Result) ([]drain.Run, error) {
		next.row, next.token = t, token
		if err := s.finish(ctx, &next); err != nil {
			return nil, err
		}
		if next.done {
			var discarded error
			if result != nil {
				discarded = result.Err
			}
			return []drain.Run{ended(t, t.Attempt, discarded)}, nil
		}
		return []drain.Run{changed(t, t.Attempt, next.change, result)}, nil
	}
	if t.Attempt > t.Max {
		return end(transition{change: store.Change{Attempt: t.Max, Reason: store.ReasonAttempts, Err: t.LostText(store.DeadAttempts)}}, nil)
	}
	limited, release := newLimited(ctx)
	defer release()
	l := &stepLease{s: s, h: h, row: t, token: token, ctx: limited}
	call := t.Task(t.Attempt)
	call.Lease = l
	if timeout := timeoutOf(h, t); timeout > 0 {
		l.ctx.endAt(time.Now().Add(timeout), timeoutError(timeout))
	}
	out := callHandler(l.ctx, h, nil, handler.Claim{}, []*store.Task{call})
	l.ctx.cancel(nil)
	switch {
	case out.abandoned:
		return nil, &drain.Misuse{Type: h.Type, TaskID: t.ID, Text: "the handler did not return after its context's end"}
	case l.misuse != nil:
		return nil, l.misuse
	case l.completed.Load() && l.again != nil:
		return []drain.Run{changed(t, t.Attempt, store.Change{Wait: l.again.Wait}, l.again)}, nil
	case l.completed.Load():
		return []drain.Run{ended(t, t.Attempt, nil)}, nil
	}
	var result *handler.Result
	if out.err != nil {
		result = handler.ResultOf(out.err)
	}
	return end(resultOf(s.r.log, h, t, out, t.Attempt, false), result)
}

// lease claims the next task of the type, if there is one, and counts the attempt.
func (s *stepper) lease(ctx context.Context, h *handler.Handler, token string) (t *store.Row, err error) {
	err = s.in.InTx(ctx, func(tx *sql.Tx) error {
		var runs []*leasedRun
		err := pg.QueryTx(ctx, tx, s.r.SQL(leaseSQL), leaseNext{}.args(h, 1, s.id, token), func(values []driver.Value) (err error) {
			runs, err = leasedRows(pg.Text(values[0]), h, 1)
			return err
		})
		if err != nil || len(runs) == 0 {
			return err
		}
		t = &runs[0].row
		if !t.LostBy.Valid {
			return nil
		}
		t.Attempt++
		return pg.One(tx.ExecContext(ctx, s.r.SQL(beginSuspectSQL), t.ID, token))
	})
	return t, err
}

// finish makes a transition, as leases.write does for many. Nobody but the handler can have taken
// the lease away.
func (s *stepper) finish(ctx context.Context, t *transition) error {
	return s.in.InTx(ctx, func(tx *sql.Tx) (err error) {
		if t.done {
			err = s.leases.complete(ctx, tx, []*transition{t})
		} else {
			err = s.leases.writeOne(ctx, tx, t)
		}
		if err != nil {
			return err
		}
		if !t.held {
			return &drain.Misuse{Type: t.row.TaskType, TaskID: t.row.ID, Text: "the handler took its lease away, or the task is gone"}
		}
		if t.change.Failed {
			return s.r.Count(ctx, tx, "failed", []string{t.row.TaskType})
		}
		return nil
	})
}

// stepLease is a stepper's hold on one task.
type stepLease struct {
	s         *stepper
	h         *handler.Handler
	row       *store.Row
	token     string
	ctx       *limited // of the handler
	again     *handler.Result
	completed atomic.Bool
	misuse    *drain.Misuse // of a Complete
}

// Extend implements outbox.Lease. Nobody takes the task over, so the context alone matters.
func (l *stepLease) Extend(ctx context.Context, d time.Duration) error {
	for _, c := range []context.Context{l.ctx, ctx} {
		if err := context.Cause(c); err != nil {
			return fmt.Errorf("relay: extend task %d: %w", l.row.ID, err)
		}
	}
	l.ctx.extend(time.Now().Add(d), timeoutError(d))
	return nil
}

// Complete implements outbox.Lease, as a relay's does.
func (l *stepLease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("relay: complete task %d: %w", l.row.ID, err) }
	var again *handler.Result
	err := l.s.in.InTx(ctx, func(tx *sql.Tx) error {
		t := *l.row
		t.Attempt--
		t.Began.Valid = true
		step := &stepTx{stepper: l.s, h: l.h, tx: tx, rows: []*store.Row{&t}}
		err := tx.QueryRowContext(ctx, l.s.r.SQL(completeSQL), t.ID, l.token).Scan(&step.xid, &t.Began.Int64)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("%w: task %d", outbox.ErrLeaseLost, t.ID)
		}
		if err == nil {
			err = step.exec(ctx, "SAVEPOINT "+stepSavepoint)
		}
		if err != nil {
			return fail(err)
		}
		if again, err = resultAgain(l.h, t.ID, fn(tx)); err != nil {
			var ended *drain.Misuse
			if errors.As(step.undo(context.WithoutCancel(ctx)), &ended) && (ended.Err == nil || endedTransaction(pgerr.Code(ended.Err), ended.Err)) {
				return ended
			}
			return err
		}
		failure, err := step.keep(ctx)
		if err = errors.Join(failure, err); err != nil {
			return fail(err)
		}
		var failed handlers.BatchError
		if again != nil {
			failed = allAgain(step.rows, again)
		}
		return step.succeed(ctx, nil, failed, new([]drain.Run))
	})
	if !errors.As(err, &l.misuse) && err == nil {
		l.again = again
		l.completed.Store(true)
	}
	return err
}
