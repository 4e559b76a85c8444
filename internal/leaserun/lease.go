package leaserun

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/progress"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// lease is a relay's hold on one task, as its handler sees it.
type lease struct {
	store     *store.Store
	report    *report.Reporter
	h         *handler.Handler
	row       *store.Row // as claimed
	token     string
	ctx       *call.Context // of the handler
	extending sync.Mutex
	notes     progress.Notes

	mu      sync.Mutex
	isLeft  bool            // the run has ended, or its handler was abandoned
	left    context.Context // ends then; made when it is asked for
	endLeft context.CancelFunc

	// completing counts the calls of Complete under way; then end tells.
	completing atomic.Int32
	end        atomic.Pointer[decide.Verdict] // what became of the task
	prevented  atomic.Bool                    // the latest Complete met the database's failure, not fn's
	unextended atomic.Bool                    // so did the latest Extend
}

func (l *lease) id() store.Lease { return store.Lease{TaskID: l.row.ID, Token: l.token} }

// noHeartbeat reports whether no heartbeat keeps it: it ends with ctx.
func (l *lease) noHeartbeat() bool { return l.h.Lease > 0 }

// whenLeft is a context that ends when the run has ended, or its handler is abandoned.
func (l *lease) whenLeft() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == nil {
		l.left, l.endLeft = context.WithCancel(context.Background())
		if l.isLeft {
			l.endLeft()
		}
	}
	return l.left
}

func (l *lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isLeft = true
	if l.endLeft != nil {
		l.endLeft()
	}
}

// Complete implements taskrun.Run. A takeover skips the row that it has deleted, so fn's writes and
// the removal of the task are one.
func (l *lease) Complete(ctx context.Context, fn func(*sql.Tx) error) error {
	l.completing.Add(1)
	defer l.completing.Add(-1)
	l.prevented.Store(false)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	left := l.whenLeft()
	if left.Err() != nil {
		return l.leftError()
	}
	return l.complete(ctx, left, fn)
}

func (l *lease) leftError() error {
	return fmt.Errorf("%w: task %d: the run has ended, or the relay has stopped", outbox.ErrLeaseLost, l.row.ID)
}

// Extend implements taskrun.Run. The row goes first: the handler must not go on beyond it.
func (l *lease) Extend(ctx context.Context, d time.Duration) error {
	fail := func(err error) error { return pgerr.Within(fmt.Sprintf("relay: extend task %d", l.row.ID), err) }
	ended := func() error {
		return cmp.Or(context.Cause(l.ctx), context.Cause(ctx))
	}
	l.extending.Lock() // a worker has one connection
	defer l.extending.Unlock()
	if err := ended(); err != nil {
		return fail(err)
	}
	if l.completing.Load() > 0 {
		return fail(errors.New("its Complete is under way"))
	}
	sent, until, cause := time.Now(), leaseFor(d), error(call.TimedOut(d))
	if l.noHeartbeat() {
		until, cause = d, call.ErrRanOut
	}
	err := l.store.Extend(ctx, l.id(), until)
	l.unextended.Store(ended() == nil && pgerr.Blameless(err))
	switch {
	case errors.Is(err, outbox.ErrLeaseLost):
		if l.end.Load() == nil {
			l.ctx.Cancel(outbox.ErrLeaseLost)
		}
		return fail(err)
	case err != nil:
		if cause := ended(); cause != nil { // in the middle: drivers say a bad connection, or less
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fail(err)
	}
	l.ctx.Extend(sent.Add(d), cause)
	if err := context.Cause(l.ctx); err != nil { // it ended meanwhile
		return fail(err)
	}
	return nil
}

// SetProgress implements taskrun.Run.
func (l *lease) SetProgress(taskID int64, fraction float64, message string) error {
	return l.notes.SetProgress(taskID, fraction, message)
}

// SetResult implements taskrun.Run.
func (l *lease) SetResult(taskID int64, result string) error {
	return l.notes.SetResult(taskID, result)
}

// leaseFor is how long a Leased handler's row stays its own for a timeout: by then the handler has
// been abandoned, and its failure recorded.
func leaseFor(timeout time.Duration) time.Duration {
	return timeout + call.Grace(timeout) + 2*call.AbandonAfter + pg.Bookkeeping
}

// Removal is the work of one Complete: it deletes the leased task, and a function of the app's
// writes. DELETE comes first, so that a function that commits removes the task together with its
// writes.
type Removal struct {
	tx    *apptx.Tx
	store *store.Store
	h     *handler.Handler
	row   store.Row
	notes *progress.Notes
	again *handler.Result // the function asked for another iteration
}

// Remove deletes the task in the transaction, if the lease is held.
func Remove(ctx context.Context, s *store.Store, tx *apptx.Tx, h *handler.Handler,
	leased *store.Row, token string, notes *progress.Notes) (*Removal, error) {
	d := &Removal{tx: tx, store: s, h: h, row: *leased, notes: notes}
	err := tx.Take(func(_ context.Context, c pg.Exclusive) (xid string, err error) {
		xid, began, err := s.Complete(ctx, c, store.Lease{TaskID: leased.ID, Token: token}, tx.Untimed()+apptx.SetSavepoint)
		d.row.Began = &began
		return xid, err
	})
	return d, err
}

// Call calls the function, and returns its failure. RunAgain is none.
func (d *Removal) Call(fn func(*sql.Tx) error) error {
	err := d.h.CheckAgain(d.row.ID, d.row.Codec(), fn(d.tx.SQL())) // by methods of the error, which may panic
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
			d.row.Finish = decide.FinishOf(d.h, d.Verdict(), d.notes.Result(d.row.ID))
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
	d, err := Remove(ctx, l.store, tx, l.h, l.row, l.token, &l.notes)
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
