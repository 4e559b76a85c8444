package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// settle ends the claim according to how the handler ended.
func (a *attempt) settle(ctx context.Context, out outcome) error {
	if out.abandoned {
		return a.abandon(out)
	}
	var some handlers.BatchError
	result := handlers.ResultOf(out.err)
	switch {
	case out.err == nil:
		return a.succeed(ctx, out, nil)
	case result.Action == handlers.ActionRunAgain:
		a.again = result
		out.err = nil // a success: what fails from here on is not the handler's result
		return a.succeed(ctx, out, allAgain(a.rows, result))
	case a.h.Kind == handlers.KindBatch && errors.As(out.err, &some):
		return a.succeed(ctx, out, some)
	case result.Action == handlers.ActionDiscard:
		a.r.log.Info("outbox: tasks discarded by their handler", "task_type", a.h.Type, "tasks", len(a.rows), "error", errorText(out.err))
		for _, r := range a.rows {
			r.discarded = out.err
		}
		return a.succeed(ctx, out, nil)
	}
	return a.fail(ctx, out, result)
}

// succeed commits what the handler did, and the removal of its tasks but for those that failed.
func (a *attempt) succeed(ctx context.Context, out outcome, failed handlers.BatchError) error {
	var canceledTypes []string
	var canceled []int64 // those that failed are gone with the done ones
	if out.canceled {
		canceled = a.canceledIDs()
	}
	done, kept := make([]*row, 0, len(a.rows)), make([]*row, 0, len(a.rows))
	rest := make(map[*row]*handlers.Result, len(failed))
	for _, r := range a.rows {
		one := failed[r.id]
		if one != nil && slices.Contains(canceled, r.id) {
			done, canceledTypes = append(done, r), append(canceledTypes, a.h.Type)
			continue
		}
		if one != nil {
			if result := handlers.ResultOf(one); result.Action != handlers.ActionDiscard {
				rest[r] = result
				continue
			}
			r.discarded = one
		}
		done, kept = append(done, r), append(kept, r)
	}
	switch err := a.end(done, kept); {
	case err == nil:
	case pgerr.Code(err) == "25P02":
		out.err = errHidden
		return a.fail(ctx, out, handlers.ResultOf(out.err))
	case pgerr.Code(err) == "" || endedTransaction(pgerr.Code(err), err) || pgerr.Lost(err):
		return a.broken(ctx, out, err)
	default:
		out.err = fmt.Errorf("relay: deferred until the commit: %w", err)
		return a.fail(ctx, out, handlers.ResultOf(out.err))
	}
	for _, r := range a.rows {
		if result := rest[r]; result != nil {
			if err := a.exclusively(func(ctx context.Context, c exclusive) error { return a.write(ctx, c, r, result) }); err != nil {
				a.abort()
				a.r.journal.forgetRuns(a.runs)
				return err
			}
		}
	}
	if len(canceledTypes) > 0 {
		err := a.exclusively(func(ctx context.Context, c exclusive) error { return a.r.count(ctx, c, "canceled", canceledTypes) })
		if err != nil {
			a.abort()
			a.r.journal.forgetRuns(a.runs)
			return err
		}
	}
	for _, r := range a.rows {
		switch {
		case rest[r] != nil: // write has said
		case r.discarded != nil:
			a.watch.set(r.id, Discarded)
		case failed[r.id] != nil:
			a.watch.set(r.id, Canceled)
		default:
			a.watch.set(r.id, Done)
		}
	}
	return a.finish(out, nil)
}

// Of one task, or of several, whose row in the journal is deleted before.
const (
	endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`
	endRunsSQL = `/* outbox: end a claim */
SELECT ` + probed
)

// end ends the handler's savepoint, forgets the runs of tasks that are done, and probes. Without the claim's transaction its message
// fails and changes nothing, as the savepoint is gone.
func (a *attempt) end(done, kept []*row) error {
	return a.exclusively(func(ctx context.Context, c exclusive) error {
		// Deferred constraints and triggers must speak now, while their errors can be undone. The handler may have taken a
		// role that has no rights here.
		statements := "SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL role TO DEFAULT; SET LOCAL statement_timeout = " + ms(bookkeeping)
		keeps := a.r.keepTasks(a.h.Keep, kept)
		if len(keeps) > 1 { // too long for one message
			if err := a.probe(ctx, c); err != nil {
				return err
			}
			for _, next := range append([]string{statements}, keeps...) {
				if _, err := c.ExecContext(ctx, next); err != nil {
					return err
				}
			}
			statements = "SET LOCAL role TO DEFAULT"
		} else if len(keeps) == 1 {
			statements += "; " + keeps[0]
		}
		statements += "; RELEASE SAVEPOINT " + a.savepoint
		if !a.runs.batch() && len(done) == 1 {
			return a.ask(ctx, c, statements, a.r.sql(endRunSQL), done[0].id)
		}
		if a.runs.batch() {
			statements += "; " + a.runs.forget(a.r, done)
		}
		return a.ask(ctx, c, statements, endRunsSQL)
	})
}

// fail undoes what the handler did and records the failure, atomically.
func (a *attempt) fail(ctx context.Context, out outcome, result *handlers.Result) error {
	if out.drained {
		a.giveBackDrained()
		return nil
	}
	if out.canceled {
		return a.endCanceled(ctx, out)
	}
	if len(a.rows) > 1 && result.Action == handlers.ActionRetry && result.Wait == 0 {
		return a.split(ctx, out)
	}
	undone := false
	err := a.exclusively(func(ctx context.Context, c exclusive) error {
		if err := a.undo(ctx, c); err != nil {
			return err
		}
		undone = true
		if a.runs.batch() { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, a.runs.forget(a.r, nil)); err != nil {
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
func (a *attempt) finish(out outcome, result *handlers.Result) error {
	err := a.commit()
	if err == nil {
		return nil
	}
	if !pgerr.CommitFailed(err) {
		a.r.journal.forgetRuns(a.runs)
		return err
	}
	failure := out.err
	if result == nil {
		failure = fmt.Errorf("relay: the commit failed: %w", err)
	}
	return a.outOfBand(failure, nil)
}

// split ends a failed batch: nothing is kept and no attempt counted; its members run one by one. Their rows in
// the journal stay, so that any relay that claims one runs it alone.
func (a *attempt) split(ctx context.Context, out outcome) error {
	if err := a.exclusively(a.undo); err != nil {
		return a.broken(ctx, out, err)
	}
	a.r.journal.markLost(a.runs)()
	a.r.journal.close(a.runs)
	a.giveBack()
	a.r.log.Warn("outbox: a batch failed; its tasks run one by one", "task_type", a.h.Type, "tasks", len(a.rows), "error", errorText(out.err))
	a.watch.all(PutOff)
	a.watch.tell()
	return a.r.runAlone(ctx, a.h, ids(a.rows))
}

// giveBackDrained ends a claim as the relay stops.
func (a *attempt) giveBackDrained() {
	a.giveBackRuns()
	a.watch.all(Drained)
}

// giveBackRuns ends a claim that is to be as if it had not been.
func (a *attempt) giveBackRuns() {
	a.r.journal.forgetRuns(a.runs)()
	a.abort()
}

// write records in the claim's transaction the result of one task that is not done.
func (a *attempt) write(ctx context.Context, tx execer, r *row, result *handlers.Result) error {
	return a.put(ctx, tx, r, r.after(a.h, result, r.begun()))
}

// put writes what becomes of a task that is not done.
func (a *attempt) put(ctx context.Context, tx execer, r *row, c change) error {
	a.watch.change(r.id, c)
	if c.reason == "" {
		a.r.due(c.wait)
		return a.r.writeBack(ctx, tx, r, c)
	}
	a.dead = append(a.dead, func() { a.r.died(r, c) })
	return a.r.writeDead(ctx, tx, r, c)
}

// broken ends a claim whose transaction is not as it should be after the handler: err is what the probe or the
// bookkeeping met.
func (a *attempt) broken(ctx context.Context, out outcome, err error) error {
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
		a.r.journal.forgetRuns(a.runs)
		a.removeCanceled()
		return nil
	case a.lost(err) && !out.overran && !endedContext(out.err):
		a.abort()
		return a.lostConnection(err)
	}
	a.abort()
	if handlerErr == nil {
		handlerErr = fmt.Errorf("relay: the handler left its transaction unusable (rows not closed?): %w", err)
	}
	return a.outOfBand(handlerErr, nil)
}

// endedContext reports whether a handler failed by a context that it had made itself; the driver closed the
// connection then.
func endedContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || pgerr.Code(err) == "57014"
}

const endBackendSQL = `/* outbox: end the backend of an abandoned claim */
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND transactionid = $1::text::xid8::xid`

// abandon leaves a handler behind that does not return. Its transaction is rolled back; a statement that it is in,
// and that no context of ours ends, goes with its backend.
func (a *attempt) abandon(out outcome) error {
	rolledBack := make(chan struct{})
	go func() {
		defer close(rolledBack)
		a.abort()
	}()
	select {
	case <-rolledBack:
	case <-time.After(time.Second):
		_ = a.r.conns.inTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, endBackendSQL, a.xid)
			return err
		})
		select {
		case <-rolledBack:
		case <-time.After(abandonAfter):
		}
	}
	a.r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", a.h.Type, "tasks", ids(a.rows))
	if out.drained {
		a.r.journal.forgetRuns(a.runs)
		a.watch.all(Drained)
		return nil
	}
	if len(a.rows) > 1 {
		a.r.journal.markLost(a.runs)
		a.watch.all(PutOff)
		if out.canceled {
			a.removeCanceled()
		}
		return nil
	}
	if out.canceled {
		a.r.journal.forgetRuns(a.runs)
		a.removeCanceled()
		return nil
	}
	return a.outOfBand(out.err, nil)
}

// lostConnection ends a claim whose connection broke while the handler ran. It is no attempt, but it is noted,
// as it may be the task's SQL that kills its backend; and the task waits for its backoff.
func (a *attempt) lostConnection(err error) error {
	a.r.journal.markLost(a.runs)
	bounded, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	for _, r := range a.rows {
		wait, _ := a.h.Backoff(1)
		if a.r.delay(bounded, r, wait) != nil {
			break // the server is away: it will not be claimed soon
		}
		a.r.due(wait)
	}
	return err
}

// ended asks how the claim's transaction ended, as the handler ended it.
func (a *attempt) ended(ctx context.Context, handlerErr error) error {
	status, err := a.r.transactionStatus(a.xid)
	switch {
	case err != nil:
		a.r.journal.markLost(a.runs)
		return err
	case status == "committed" && handlerErr == nil:
		a.r.log.Error("outbox: the handler committed the transaction of its claim; it is the relay's to commit", "task_type", a.h.Type, "tasks", ids(a.rows))
		a.r.journal.forgetRuns(a.runs)
		return a.insertAgain(ctx) // which says what became of them
	case status == "committed":
		a.r.log.Error("outbox: the handler committed the transaction of its claim and then failed; its tasks are dead letters", "task_type", a.h.Type, "tasks", ids(a.rows))
		var dead []func()
		err := a.r.conns.inTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *sql.Tx) error {
			for _, r := range a.rows {
				c := change{attempt: min(r.begun(), r.max), reason: reasonCommitted, err: handlerErr, failed: true}
				if err := a.r.writeDead(ctx, tx, r, c); err != nil {
					return err
				}
				a.watch.change(r.id, c)
				dead = append(dead, func() { a.r.died(r, c) })
			}
			return nil
		})
		if err == nil {
			a.watch.confirm()
		}
		for _, tell := range dead {
			if err == nil {
				tell()
			}
		}
		if err != nil {
			a.r.log.Error("outbox: dead letters could not be written; the tasks are only in this record", "task_type", a.h.Type, "tasks", ids(a.rows), "error", safeText(err))
		}
		return err
	}
	if handlerErr == nil {
		handlerErr = errors.New("relay: the handler rolled the transaction of its claim back")
	}
	return a.outOfBand(handlerErr, nil)
}
