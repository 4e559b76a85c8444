package leaserun

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Removal is the work of one Complete: it deletes the leased task, and a function of the app's
// writes. DELETE comes first, so that a function that commits removes the task together with its
// writes.
type Removal struct {
	tx    *apptx.Tx
	store *store.Store
	h     *handler.Handler
	row   store.Row
	again *handler.Result // the function asked for another iteration
}

// Remove deletes the task in the transaction, if the lease is held.
func Remove(ctx context.Context, s *store.Store, tx *apptx.Tx, h *handler.Handler,
	leased *store.Row, token string) (*Removal, error) {
	d := &Removal{tx: tx, store: s, h: h, row: *leased}
	err := tx.Take(func(_ context.Context, c pg.Exclusive) (xid string, err error) {
		xid, began, err := s.Complete(ctx, c, store.Lease{TaskID: leased.ID, Token: token}, tx.Untimed()+apptx.SetSavepoint)
		d.row.Began = &began
		return xid, err
	})
	return d, err
}

// Call calls the function, and returns its failure. RunAgain is none.
func (d *Removal) Call(fn func(*sql.Tx) error) error {
	err := d.h.CheckAgain(d.row.ID, fn(d.tx.SQL())) // by methods of the error, which may panic
	if runsAgain(err) {
		result := handler.ResultOf(err)
		d.again = &result
		return nil
	}
	return err
}

func runsAgain(err error) bool {
	return err != nil && handler.ResultOf(err).Action == handler.ActionRunAgain
}

// End ends the transaction after the function: after a failure the task is back under its lease.
func (d *Removal) End(failure error) apptx.Ended {
	return d.tx.End(failure, func(failure error) apptx.Plan {
		if failure != nil {
			return apptx.Plan{Action: apptx.Back, Failure: failure}
		}
		p := apptx.Plan{Action: apptx.Keep, History: d.h.Retention}
		switch {
		case d.again == nil && d.h.Retention > 0:
			p.Finished = []*store.Row{&d.row}
		case d.again != nil:
			p.Write = func(ctx context.Context, c pg.Exclusive) error {
				return d.store.WriteBack(ctx, c, &d.row, decide.NextIteration(*d.again))
			}
		}
		return p
	})
}

// Verdict is what becomes of the task by a Complete that committed.
func (d *Removal) Verdict() decide.Verdict { return decide.Committed(&d.row, nil, d.again) }

// complete is one call of Complete in a relay. After a failure the handler's result decides.
func (l *lease) complete(ctx context.Context, left context.Context, fn func(*sql.Tx) error) error {
	tx, err := apptx.Begin(ctx, l.store)
	if err != nil {
		l.prevented.Store(true)
		return l.completeFailed(ctx, err)
	}
	d, err := Remove(ctx, l.store, tx, l.h, l.row, l.token)
	switch {
	case errors.Is(err, outbox.ErrLeaseLost):
		_ = tx.RollBack()
		return fmt.Errorf("%w: task %d", err, l.row.ID)
	case err != nil:
		tx.Abort()
		l.prevented.Store(true)
		return l.completeFailed(ctx, err)
	}
	stay := context.AfterFunc(left, tx.Abandon) // the task's row must not stay locked
	var panicked error                          // or its goroutine ended
	guard.Do(func() { err = d.Call(fn) }, func(p error) {
		if panicked = p; p != nil && stay() {
			_ = l.completed(ctx, d, p, d.End(p))
		}
	})
	if panicked != nil {
		panic(panicked)
	}
	if !stay() {
		return l.leftError()
	}
	return l.completed(ctx, d, err, d.End(err))
}

// completed notes how the transaction of a Complete ended, after the failure of its function or nil.
func (l *lease) completed(ctx context.Context, d *Removal, failure error, end apptx.Ended) error {
	switch end.How {
	case apptx.Committed:
		l.became(d.Verdict())
		return nil
	case apptx.Unknown:
		return l.unknown(end.Err)
	case apptx.Failed:
		l.prevented.Store(pgerr.Blameless(end.Err))
		return l.completeFailed(ctx, end.Err)
	case apptx.EndedByCode:
		return l.endedByCode(ctx, d, failure, end)
	}
	if failure != nil {
		return failure
	}
	return l.completeFailed(ctx, end.Failure)
}

// endedByCode acts on how the function has ended the transaction itself.
func (l *lease) endedByCode(ctx context.Context, d *Removal, failure error, end apptx.Ended) error {
	switch {
	case end.Err != nil && failure == nil:
		return l.unknown(end.Err)
	case !end.Committed && failure != nil:
		l.prevented.Store(end.Err != nil)
		return failure
	case !end.Committed:
		return l.completeFailed(ctx, errors.New("the function rolled its transaction back"))
	case failure == nil:
		l.report.Log.Error("outbox: the function that Complete was given committed its transaction; "+
			"it is the relay's to commit", "task_type", l.h.Type, "task_id", l.row.ID)
	}
	verdicts := []decide.Verdict{decide.Committed(&d.row, failure, d.again)}
	err := apptx.RecordCommitted(ctx, l.store, l.report, []*store.Row{&d.row}, verdicts, 0)
	if err != nil {
		l.end.Store(&decide.Verdict{Outcome: decide.Infrastructure})
	} else {
		l.became(verdicts[0])
	}
	if failure != nil {
		failure = fmt.Errorf("the function committed its transaction and then failed: %w", errors.Join(failure, err))
		return l.completeFailed(ctx, failure)
	}
	if err != nil {
		return l.completeFailed(ctx, err)
	}
	return nil
}

// became notes what became of the task: the handler's own result does not matter any more.
func (l *lease) became(v decide.Verdict) {
	l.end.Store(&v)
	switch v.Outcome {
	case decide.RunAgain:
		l.report.Due.Schedule(v.Change.Wait)
	case decide.Dead:
		l.report.Died(l.row, v.Change)
	}
}

func (l *lease) completeFailed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil { // it ended in the middle: perhaps by the loss of the lease
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return pgerr.Within(fmt.Sprintf("relay: complete task %d", l.row.ID), err)
}

func (l *lease) unknown(err error) error {
	l.prevented.Store(true)
	return fmt.Errorf("%w: task %d: %w", outbox.ErrCommitUnknown, l.row.ID, err)
}
