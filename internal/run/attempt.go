package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// attempt is one claim of a Tx or Batch handler, from BEGIN to COMMIT: the transaction that deletes
// the tasks is the one that the handler works in.
//
//	BEGIN; claim; SAVEPOINT; journal; handler; RELEASE and probe; results; COMMIT
//
// What the handler did is undone by ROLLBACK TO, and the failure recorded in the same transaction.
// Whenever anything else than expected comes back, the transaction is rolled back, its connection
// closed, and what is to be recorded is recorded in another one: never COMMIT when in doubt.
type attempt struct {
	unit
	r             *Runner
	leaveSuspects func() // when they have ended
	claim         handler.Claim
	watch         *watch
	again         *handler.Result // all tasks are to run again
	open          *openClaim      // once it has taken tasks
	took          time.Duration   // the handler's call
	alone         []int64         // tasks that are to run one by one next
	left          []*store.Row    // tasks of a group that are as before their claim
}

// run runs the handler, by the given call, for what was claimed.
func (a *attempt) run(ctx context.Context, call func(context.Context) error) error {
	a.runs = store.NewRuns(a.rows, a.xid)
	recorded := a.r.Journal.Record(a.runs)
	defer a.r.Journal.Close(a.runs)
	err := a.allow(a.timeout())
	found, journalErr := recorded()
	if err = errors.Join(err, journalErr); err != nil {
		a.abort()
		if !pgerr.Refusal(journalErr) { // else nothing was written
			a.r.Journal.ForgetRuns(a.runs)
		}
		return err
	}
	if len(found) > 0 || slices.ContainsFunc(a.rows, (*store.Row).Exhausted) {
		if done, err := a.judge(ctx, found); done {
			return err
		}
	}
	if len(found) > 0 {
		// A suspect is journalled when it is about to run. Until then another
		// suspect's crash must not count against it.
		defer a.leaveSuspects()
		a.runs.Suspect = true
		if _, err := a.r.Journal.Record(a.runs)(); err != nil {
			a.giveBackRuns()
			return err
		}
	}
	return call(ctx)
}

// timeout is that of the first call: of all tasks, or of the first one in a group.
func (a *attempt) timeout() time.Duration {
	if a.h.GroupSize > 1 {
		return timeoutOf(a.h, a.rows[0])
	}
	return timeoutOf(a.h, a.rows...)
}

// call calls the handler for all tasks, and settles that.
func (a *attempt) call(ctx context.Context) error {
	timeout := a.timeout()
	tasks := a.tasks()
	start := time.Now()
	limit, end := context.WithTimeoutCause(a.open.ctx, timeout+grace(timeout), timedOut(timeout))
	defer end()
	out := callHandler(limit, a.h, a.tx, a.claim, tasks)
	for try := 0; a.againAfterDeadlock(limit, out, try); try++ {
		out = callHandler(limit, a.h, a.tx, a.claim, tasks)
	}
	d := time.Since(start)
	out.took, a.took = d, d
	a.watch.called(start, d, tasks)
	a.r.groups.note(a.h, 1, d)
	a.warnSlow(d)
	return a.settle(ctx, out)
}

// slowTransaction is when the relay warns of a Tx or Batch handler.
const slowTransaction = 5 * time.Second

func (a *attempt) warnSlow(d time.Duration) {
	if d > slowTransaction {
		a.r.Log.Warn("outbox: a handler kept a transaction open for long; register it as Leased", "task_type", a.h.Type, "duration", d.Round(time.Millisecond))
	}
}

// settle ends the claim according to how the handler ended.
func (a *attempt) settle(ctx context.Context, out callResult) error {
	if out.abandoned {
		return a.abandon(out)
	}
	end := newEnding(a.r.Log, a.h, out)
	if out.canceled {
		end.canceled = a.open.canceledIDs()
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
	if result := handler.ResultOf(out.err); result.Action == handler.ActionRunAgain {
		a.again = &result
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

// finish commits. A commit that surely failed is a failure of the handler: a trigger or constraint
// that only a commit checks. One that gave way to others, or whose outcome is unknown, is no
// attempt: the row shows what happened.
func (a *attempt) finish(verdicts []verdict, failure error) error {
	err := a.commit(verdicts)
	if err == nil {
		return nil
	}
	if !pgerr.CommitFailed(err) || failure == nil && pgerr.Blameless(err) {
		a.r.Journal.ForgetRuns(a.runs)
		return err
	}
	if failure == nil {
		failure = fmt.Errorf("relay: the commit failed: %w", err)
	}
	return a.outOfBand(failure, nil)
}

// commit commits, and tells what has become of the tasks.
func (a *attempt) commit(verdicts []verdict) error {
	if err := a.tx.Commit(); err != nil {
		pg.Drop(a.conn)
		return err
	}
	a.keepConn()
	a.tell(verdicts)
	return nil
}

// tell tells what has become of the tasks: without verdicts they are done.
func (a *attempt) tell(verdicts []verdict) {
	if verdicts == nil {
		a.watch.all(Done)
		return
	}
	var discarded []int64
	var because error
	for i, v := range verdicts {
		r := a.rows[i]
		a.watch.set(r.ID, v)
		switch {
		case v.outcome == Discarded:
			discarded, because = append(discarded, r.ID), v.change.Err
		case v.done:
		case v.change.Reason != "":
			a.r.died(r, v.change)
		default:
			a.r.failed(r, v.change)
			a.r.due(v.change.Wait)
		}
	}
	if len(discarded) > 0 {
		a.r.Log.Info("outbox: tasks were discarded by their handler", "task_type", a.h.Type, "tasks", discarded, "error", pgerr.Text(because))
	}
}
