package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// settle ends the claim according to how the handler ended.
func (a *attempt) settle(ctx context.Context, out callResult) error {
	if out.abandoned {
		return a.abandon(out)
	}
	var some handlers.BatchError
	result := handler.ResultOf(out.err)
	switch {
	case out.err == nil:
		return a.succeed(ctx, out, nil)
	case result.Action == handler.ActionRunAgain:
		a.again = result
		out.err = nil // a success: what fails from here on is not the handler's result
		return a.succeed(ctx, out, allAgain(a.rows, result))
	case a.h.Kind == handler.KindBatch && errors.As(out.err, &some):
		return a.succeed(ctx, out, some)
	case result.Action == handler.ActionDiscard:
		a.r.log.Info("outbox: tasks discarded by their handler", "task_type", a.h.Type, "tasks", len(a.rows), "error", pgerr.Text(out.err))
		for _, r := range a.rows {
			r.Discarded = out.err
		}
		return a.succeed(ctx, out, nil)
	}
	return a.fail(ctx, out, result)
}

// succeed commits what the handler did, and the removal of its tasks but for those that failed.
func (a *attempt) succeed(ctx context.Context, out callResult, failed handlers.BatchError) error {
	var canceledTypes []string
	var canceled []int64 // those that failed are gone with the done ones
	if out.canceled {
		canceled = a.canceledIDs()
	}
	done, kept := make([]*store.Row, 0, len(a.rows)), make([]*store.Row, 0, len(a.rows))
	rest := make(map[*store.Row]*handler.Result, len(failed))
	for _, r := range a.rows {
		one := failed[r.ID]
		if one != nil && slices.Contains(canceled, r.ID) {
			done, canceledTypes = append(done, r), append(canceledTypes, a.h.Type)
			continue
		}
		if one != nil {
			if result := handler.ResultOf(one); result.Action != handler.ActionDiscard {
				rest[r] = result
				continue
			}
			r.Discarded = one
		}
		done, kept = append(done, r), append(kept, r)
	}
	switch err := a.end(done, kept); {
	case err == nil:
	case isBroken(err):
		return a.broken(ctx, out, err)
	default:
		out.err = refusedBy(err)
		return a.fail(ctx, out, handler.ResultOf(out.err))
	}
	for _, r := range a.rows {
		if result := rest[r]; result != nil {
			if err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error { return a.write(ctx, c, r, result) }); err != nil {
				a.abort()
				a.r.journal.ForgetRuns(a.runs)
				return err
			}
		}
	}
	if len(canceledTypes) > 0 {
		err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error { return a.Count(ctx, c, "canceled", canceledTypes) })
		if err != nil {
			a.abort()
			a.r.journal.ForgetRuns(a.runs)
			return err
		}
	}
	for _, r := range a.rows {
		switch {
		case rest[r] != nil: // write has said
		case r.Discarded != nil:
			a.watch.set(r.ID, Discarded)
		case failed[r.ID] != nil:
			a.watch.set(r.ID, Canceled)
		default:
			a.watch.set(r.ID, Done)
		}
	}
	return a.finish(out, nil)
}

// Of one task; of none (0) where their rows in the journal are deleted before.
const endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`

// end releases the handler's savepoint and forgets the runs of tasks that are done.
func (a *attempt) end(done, kept []*store.Row) error {
	keeps := a.KeepTasks(a.h.Keep, kept)
	after, one := "", int64(0)
	if a.runs.Batch() {
		after = "; " + a.runs.Forget(a.Store, done)
	} else if len(done) == 1 {
		one = done[0].ID
	}
	return a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		return a.release(ctx, c, keeps, after, a.SQL(endRunSQL), one)
	})
}

// fail undoes what the handler did and records the failure, atomically.
func (a *attempt) fail(ctx context.Context, out callResult, result *handler.Result) error {
	if out.drained {
		a.giveBackDrained()
		return nil
	}
	if out.canceled {
		return a.endCanceled(ctx, out)
	}
	if len(a.rows) > 1 && result.Action == handler.ActionRetry && result.Wait == 0 {
		return a.split(ctx, out)
	}
	undone := false
	err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := a.undo(ctx, c); err != nil {
			return err
		}
		undone = true
		if a.runs.Batch() { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, a.runs.Forget(a.Store, nil)); err != nil {
				return err
			}
		}
		for _, r := range a.rows {
			if err := a.write(ctx, c, r, result); err != nil {
				return err
			}
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	switch {
	case err == nil:
		return a.finish(out, result)
	case !undone:
		return a.broken(ctx, out, err)
	}
	a.abort()
	return a.outOfBand(out.err, err)
}

// finish commits. A commit that surely failed is the handler's failure: a trigger or constraint that only a
// commit checks, a serialization failure. One whose outcome is unknown is nobody's: the rows are the truth.
func (a *attempt) finish(out callResult, result *handler.Result) error {
	err := a.commit()
	if err == nil {
		return nil
	}
	if !pgerr.CommitFailed(err) {
		a.r.journal.ForgetRuns(a.runs)
		return err
	}
	failure := out.err
	if result == nil {
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
	a.r.journal.MarkLost(a.runs)()
	a.r.journal.Close(a.runs)
	a.giveBack()
	a.r.log.Warn("outbox: a batch failed; its tasks run one by one", "task_type", a.h.Type, "tasks", len(a.rows), "error", pgerr.Text(out.err))
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
	a.r.journal.ForgetRuns(a.runs)()
	a.abort()
}

// write records in the claim's transaction the result of one task that is not done.
func (a *attempt) write(ctx context.Context, tx store.Execer, r *store.Row, result *handler.Result) error {
	return a.put(ctx, tx, r, after(a.r.log, a.h, r, result, r.Begun()))
}

// put writes what becomes of a task that is not done.
func (a *attempt) put(ctx context.Context, tx store.Execer, r *store.Row, c store.Change) error {
	a.watch.change(r.ID, c)
	if c.Reason == "" {
		a.r.due(c.Wait)
		return a.WriteBack(ctx, tx, r, c)
	}
	a.dead = append(a.dead, func() { a.r.died(r, c) })
	return a.WriteDead(ctx, tx, r, c)
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
		a.r.journal.ForgetRuns(a.runs)
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
	a.r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", a.h.Type, "tasks", store.IDs(a.rows))
	if out.drained {
		a.r.journal.ForgetRuns(a.runs)
		a.watch.all(Drained)
		return nil
	}
	if len(a.rows) > 1 {
		a.r.journal.MarkLost(a.runs)
		a.watch.all(PutOff)
		if out.canceled {
			a.removeCanceled()
		}
		return nil
	}
	if out.canceled {
		a.r.journal.ForgetRuns(a.runs)
		a.removeCanceled()
		return nil
	}
	return a.outOfBand(out.err, nil)
}

// lostConnection ends a claim whose connection broke while the handler ran. It is no attempt, but it is noted,
// as it may be the task's SQL that kills its backend; and the task waits for its backoff.
func (a *attempt) lostConnection(err error) error {
	a.r.journal.MarkLost(a.runs)
	bounded, cancel := context.WithTimeout(context.Background(), pg.StatementTimeout)
	defer cancel()
	for _, r := range a.rows {
		wait, _ := backoff(a.r.log, a.h, 1)
		if a.Delay(bounded, r, wait) != nil {
			break // the server is away: it will not be claimed soon
		}
		a.r.due(wait)
	}
	return err
}
