package run

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// fail undoes what the handler did and records the failure, atomically.
func (a *attempt) fail(ctx context.Context, out callResult, verdicts []verdict) error {
	switch undone, err := a.reject(verdicts); {
	case err == nil:
		return a.finish(verdicts, out.err)
	case !undone:
		return a.broken(ctx, out, err)
	default:
		a.abort()
		return a.outOfBand(out.err, err)
	}
}

// split ends a failed batch: nothing is kept and no attempt counted; its members run one by one.
// Their rows in the journal stay, so that any relay that claims one runs it solo.
func (a *attempt) split(ctx context.Context, out callResult) error {
	if err := a.exclusively(a.undo); err != nil {
		return a.broken(ctx, out, err)
	}
	a.logSplit(out.err)
	a.solo(a.r.Journal.MarkLost(a.runs), store.IDs(a.rows))
	return nil
}

func (a *attempt) logSplit(err error) {
	what := "batch"
	if a.h.GroupSize > 1 {
		what = "group"
		a.r.groups.failed(a.h)
	}
	a.r.Log.Warn("outbox: a "+what+" failed; its tasks run one by one", "task_type", a.h.Type, "tasks", len(a.rows), pgerr.LogAttr(err))
}

// giveBackDrained ends a claim as the relay stops.
func (a *attempt) giveBackDrained() {
	a.giveBackRuns()
	a.watch.all(Drained)
}

// broken ends a claim whose transaction is not as it should be after the handler: err is what the
// probe or the bookkeeping met.
func (a *attempt) broken(ctx context.Context, out callResult, err error) error {
	handlerErr := out.err
	switch {
	case out.drained:
		a.giveBackDrained()
		return nil
	case endedTransaction(pgerr.Code(err), err):
		a.abort()
		return a.ended(ctx, out.err)
	case out.canceled:
		a.abort()
		a.r.Journal.ForgetRuns(a.runs)
		a.removeCanceled()
		return nil
	case a.lost(err) && !out.overran && !endedContext(out.err):
		a.abort()
		return a.lostConnection(err)
	}
	a.abort()
	switch {
	case handlerErr != nil:
	case pgerr.Code(err) != "":
		handlerErr = refusedBy(err)
	default:
		handlerErr = unusable(err)
	}
	return a.outOfBand(handlerErr, nil)
}

// abandon leaves a handler behind that does not return.
func (a *attempt) abandon(out callResult) error {
	a.leave()
	a.r.Log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", a.h.Type, "tasks", store.IDs(a.rows))
	if out.drained {
		a.r.Journal.ForgetRuns(a.runs)
		a.watch.all(Drained)
		return nil
	}
	if len(a.rows) > 1 {
		a.r.Journal.MarkLost(a.runs)
		a.watch.all(PutOff)
		if out.canceled {
			a.removeCanceled()
		}
		return nil
	}
	if out.canceled {
		a.r.Journal.ForgetRuns(a.runs)
		a.removeCanceled()
		return nil
	}
	return a.outOfBand(out.err, nil)
}

// lostConnection ends a claim whose connection broke while the handler ran. It is no attempt, but
// it is noted, as it may be the task's SQL that kills its backend; and the task waits for its
// backoff.
func (a *attempt) lostConnection(err error) error {
	a.r.Journal.MarkLost(a.runs)
	bounded, cancel := context.WithTimeout(context.Background(), pg.StatementTimeout)
	defer cancel()
	for _, r := range a.rows {
		wait, _ := backoffOf(a.r.Log, a.h)(1)
		if a.Delay(bounded, r, wait) != nil {
			break // the server is away: it will not be claimed soon
		}
		a.r.due(wait)
	}
	return err
}

// ended asks how the claim's transaction ended, as the handler ended it.
func (a *attempt) ended(ctx context.Context, handlerErr error) error {
	status, err := a.TransactionStatus(a.xid)
	switch {
	case err != nil:
		a.r.Journal.MarkLost(a.runs)
		return err
	case status == "committed" && handlerErr == nil:
		a.r.Log.Error("outbox: the handler committed the transaction of its claim; it is the relay's to commit", "task_type", a.h.Type, "tasks", store.IDs(a.rows))
		a.r.Journal.ForgetRuns(a.runs)
	case status == "committed": // its tasks are dead letters, and logged as such
	default:
		if handlerErr == nil {
			handlerErr = errRolledBack
		}
		return a.outOfBand(handlerErr, nil)
	}
	verdicts, err := a.r.recordCommitted(ctx, a.rows, handlerErr, a.again)
	if err == nil {
		a.tell(verdicts)
	}
	return err
}

// outOfBand records a failed attempt in a transaction of its own. cause, if any, is why it had to.
func (a *attempt) outOfBand(handlerErr, cause error) error {
	if len(a.runs.IDs) > 1 {
		// The failure may be any member's: they run one by one, where it counts.
		a.logSplit(handlerErr)
		a.r.Journal.MarkLost(a.runs)
		a.watch.all(PutOff)
		return cause
	}
	t := a.rows[0]
	end := newEnding(a.r.Log, a.h, callResult{err: handlerErr, took: a.took})
	v := end.failed(t, handler.ResultOf(handlerErr), t.Begun())
	var refused error
	for try := range 6 {
		if try > 0 {
			time.Sleep(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		found, err := a.RecordAside(t, v.change)
		if err == nil && found {
			a.tell([]verdict{v})
			return cause
		}
		refused = err
	}
	if cause = cmp.Or(cause, refused); cause != nil {
		a.r.Log.Warn("outbox: an attempt failed, which cannot be recorded; the task runs again", "task_type", t.TaskType, "task_id", t.ID,
			"because", pgerr.LogText(cause), pgerr.LogAttr(handlerErr))
	}
	if v.outcome == Snoozed || v.outcome == Throttled {
		a.r.Journal.ForgetRuns(a.runs) // no attempt
		return cause
	}
	err := a.OrphanRun(t, a.runs.Token)
	if err == nil {
		a.watch.all(Retry)
	}
	return errors.Join(cause, err)
}

// endCanceled undoes what the handler did and removes the canceled task. Of a batch the others go
// back as they were.
func (a *attempt) endCanceled(ctx context.Context, out callResult) error {
	last, removed := len(a.rows) == 1, []verdict{{outcome: Canceled, done: true}}
	err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := a.undo(ctx, c); err != nil || !last {
			return err
		}
		if err := a.EndCanceled(ctx, c, a.rows[0]); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	if err != nil {
		return a.broken(ctx, out, err)
	}
	if !last {
		a.r.Journal.ForgetRuns(a.runs)()
		a.r.Journal.Close(a.runs)
		a.giveBack()
		a.removeCanceled()
		return nil
	}
	if err := a.commit(removed); err != nil {
		a.r.Journal.ForgetRuns(a.runs)
		return err
	}
	logCanceled(a.r.Log, a.h.Type, a.open.canceledIDs())
	return nil
}

// removeCanceled removes the canceled tasks of a claim that is gone, if they can be had; else
// relays do with their heartbeats.
func (a *attempt) removeCanceled() {
	canceled := a.open.canceledIDs()
	a.watch.canceled(canceled)
	for try := range 6 {
		if try > 0 {
			time.Sleep(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		var n int
		err := a.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
			n, err = a.RemoveCanceled(ctx, tx, canceled)
			return err
		})
		if err == nil && n >= len(canceled) {
			logCanceled(a.r.Log, a.h.Type, canceled)
			return
		}
	}
}

// againAfterDeadlock undoes what a handler with GroupCommit wrote, and reports whether to call it
// again within its timeout: in a transaction of its own, its task was the victim of a deadlock,
// which may be with a group that holds the locks of other tasks.
func (a *attempt) againAfterDeadlock(ctx context.Context, out callResult, try int) bool {
	f, ok := out.err.(*failure)
	if !ok || f.code != "40P01" || a.h.GroupSize <= 1 || ctx.Err() != nil {
		return false
	}
	pause := min(10*time.Millisecond<<min(try, 10), time.Second)
	select {
	case <-time.After(pause/2 + rand.N(pause)):
	case <-ctx.Done():
		return false
	}
	return a.exec("ROLLBACK TO SAVEPOINT "+savepoint) == nil
}
