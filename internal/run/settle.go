package run

import (
	"context"
	"fmt"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// settle ends the claim according to how the handler ended.
func (a *attempt) settle(ctx context.Context, out callResult) error {
	if out.abandoned {
		return a.abandon(out)
	}
	end := ending{kind: a.h.Kind, out: out, backoff: backoffOf(a.r.Log, a.h)}
	if out.canceled {
		end.canceled = a.canceledIDs()
	}
	work, verdicts := decide(end, a.rows)
	switch work {
	case keepWork:
		return a.succeed(ctx, out, verdicts)
	case splitWork:
		return a.split(ctx, out)
	case cancelWork:
		return a.endCanceled(ctx, out)
	case giveBackWork:
		a.giveBackDrained()
		return nil
	}
	return a.fail(ctx, out, verdicts)
}

// succeed commits what the handler did, with what becomes of its tasks.
func (a *attempt) succeed(ctx context.Context, out callResult, verdicts []verdict) error {
	if result := handlers.ResultOf(out.err); result.Action == handlers.ActionRunAgain {
		a.again = result
		out.err = nil // a success: what fails from here on is not the handler's result
	}
	switch released, err := a.keep(verdicts); {
	case err == nil:
		return a.finish(verdicts, nil)
	case released:
		a.abort()
		a.r.Journal.ForgetRuns(a.runs)
		return err
	case isBroken(err):
		return a.broken(ctx, out, err)
	default:
		out.err = refusedBy(err)
		return a.settle(ctx, out)
	}
}

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

// finish commits. A commit that surely failed is a failure of the handler: a trigger or constraint that only a
// commit checks, a serialization failure. One whose outcome is unknown is nobody's: the rows are the truth.
func (a *attempt) finish(verdicts []verdict, failure error) error {
	err := a.commit(verdicts)
	if err == nil {
		return nil
	}
	if !pgerr.CommitFailed(err) {
		a.r.Journal.ForgetRuns(a.runs)
		return err
	}
	if failure == nil {
		failure = fmt.Errorf("relay: the commit failed: %w", err)
	}
	return a.outOfBand(failure, nil)
}

// split ends a failed batch: nothing is kept and no attempt counted; its members run one by one. Their rows in
// the journal stay, so that any relay that claims one runs it solo.
func (a *attempt) split(ctx context.Context, out callResult) error {
	if err := a.exclusively(a.undo); err != nil {
		return a.broken(ctx, out, err)
	}
	a.r.Journal.MarkLost(a.runs)()
	a.r.Journal.Close(a.runs)
	a.giveBack()
	a.r.Log.Warn("outbox: a batch failed; its tasks run one by one", "task_type", a.h.Type, "tasks", len(a.rows), "error", pgerr.Text(out.err))
	a.watch.all(PutOff)
	a.watch.tell()
	return a.r.runSolo(ctx, a.h, store.IDs(a.rows))
}

// giveBackDrained ends a claim as the relay stops.
func (a *attempt) giveBackDrained() {
	a.giveBackRuns()
	a.watch.all(Drained)
}

// giveBackRuns ends a claim that is to be as if it had not been.
func (a *attempt) giveBackRuns() {
	a.r.Journal.ForgetRuns(a.runs)()
	a.abort()
}

// broken ends a claim whose transaction is not as it should be after the handler: err is what the probe or the
// bookkeeping met.
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
	if handlerErr == nil {
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

// lostConnection ends a claim whose connection broke while the handler ran. It is no attempt, but it is noted,
// as it may be the task's SQL that kills its backend; and the task waits for its backoff.
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
