package txrun

import (
	"context"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
)

// attempt is one claim of a Tx or Batch handler in a relay, from BEGIN to COMMIT.
type attempt struct {
	p      *Params
	groups *groupSizes
	unit   *Unit
	open   *openClaim
	claim  handler.Claim
	watch  *report.Watch

	leaveSuspects func()         // when they have ended
	took          time.Duration  // the handler's call
	alone         []int64        // tasks that are to run one by one next
	left          []*store.Row   // tasks of a group that are as before their claim
	looks         sync.WaitGroup // at the backend of a slow handler
}

// timeout is that of the first call: of all tasks, or of the first task of a group.
func (a *attempt) timeout() time.Duration {
	if a.unit.h.GroupSize > 1 {
		return decide.Timeout(a.unit.h, a.unit.Rows[0])
	}
	return decide.Timeout(a.unit.h, a.unit.Rows...)
}

// call calls the handler for all tasks, and ends the claim.
func (a *attempt) call(ctx context.Context) error {
	u, timeout := a.unit, a.timeout()
	tasks := u.Tasks()
	a.watch.Calling(tasks...)
	returned := a.watchSlow()
	start := time.Now()
	limit, end := context.WithTimeoutCause(a.open.ctx, timeout+call.Grace(timeout), call.TimedOut(timeout))
	defer end()
	run := func(ctx context.Context) error { return u.h.Run(ctx, u.Tx.SQL(), a.claim, tasks) }
	out := call.Run(limit, run)
	for try := 0; a.againAfterDeadlock(limit, out, try); try++ {
		tasks = u.Tasks() // as they were: the handler may have changed the others
		out = call.Run(limit, run)
	}
	returned()
	d := time.Since(start)
	out.Took, a.took = d, d
	a.watch.Called(start, d)
	a.groups.note(u.h, 1, d)
	if out.Abandoned {
		return a.abandon(out)
	}
	return a.end(ctx, out)
}

// watchSlow warns of a handler that keeps its transaction open for long, while it does, until
// returned is called.
func (a *attempt) watchSlow() (returned func()) {
	h, xid, tasks := a.unit.h, a.unit.Tx.XID(), len(a.unit.Rows)
	a.looks.Add(1)
	timer := time.AfterFunc(slowTransaction, func() {
		defer a.looks.Done()
		a.p.warnSlow(h, xid, tasks)
	})
	return func() {
		if timer.Stop() {
			a.looks.Done()
		}
	}
}

// end ends the claim according to how the handler ended.
func (a *attempt) end(ctx context.Context, out call.Result) error {
	var work decide.Work
	var verdicts []decide.Verdict
	end := a.unit.Tx.End(out.Err, func(failure error) (p apptx.Plan) {
		out.Err = failure
		run := decide.NewRun(a.p.Report.Log, a.unit.h, out)
		if out.Canceled {
			run.Canceled = a.open.canceledIDs()
		}
		work, verdicts = run.Tasks(a.unit.Rows)
		if work == decide.Cancel && len(a.unit.Rows) == 1 {
			work, verdicts = decide.Undo, []decide.Verdict{{Outcome: decide.Canceled, Done: true}}
		}
		switch work {
		case decide.Keep:
			p = a.unit.Keep(verdicts)
		case decide.Undo:
			p = a.unit.Reject(verdicts)
		case decide.Split:
			a.logSplit(failure)
			p = apptx.Plan{Action: apptx.Back, Before: a.noted(a.p.Journal.MarkLost)}
		case decide.Cancel:
			p = apptx.Plan{Action: apptx.Back, Before: a.noted(a.p.Journal.ForgetRuns)}
		case decide.GiveBack:
			p = apptx.Plan{Action: apptx.Abort, Before: func() { a.p.Journal.ForgetRuns(a.unit.runs)() }}
		}
		if handler.ResultOf(failure).Action != handler.ActionRunAgain { // which is a success
			p.Failure = failure
		}
		return p
	})
	if end.How == apptx.RolledBack {
		switch work {
		case decide.Split:
			a.watch.SetAll(decide.Released)
			a.alone = store.IDs(a.unit.Rows)
		case decide.Cancel:
			a.removeCanceled()
		case decide.GiveBack:
			a.watch.SetAll(decide.Drained)
		}
		return nil
	}
	return a.ended(ctx, out, end, verdicts)
}

// ended acts on the end of the transaction. A transaction that failed for the database, or whose
// outcome is unknown, is no attempt: the row shows what happened.
func (a *attempt) ended(ctx context.Context, out call.Result, end apptx.Ended, verdicts []decide.Verdict) error {
	journal, runs := a.p.Journal, a.unit.runs
	canceled := out.Canceled && end.How != apptx.EndedByCode
	switch {
	case end.How == apptx.Committed:
		a.recorded(verdicts)
		return nil
	case end.How == apptx.Unknown, end.How == apptx.Failed && end.Plan.Action == apptx.Keep:
		journal.ForgetRuns(runs)
		return end.Err
	case out.Drained:
		journal.ForgetRuns(runs)()
		a.watch.SetAll(decide.Drained)
		return nil
	case canceled:
		journal.ForgetRuns(runs)
		a.removeCanceled()
		return nil
	case end.How == apptx.Failed:
		return a.outOfBand(end.Failure, end.Err)
	case end.How == apptx.EndedByCode:
		return a.endedByCode(ctx, end, verdicts)
	case end.How == apptx.Lost && !out.Overran && !call.EndedContext(out.Err):
		return a.lostConnection(end.Err)
	}
	return a.outOfBand(end.Failure, nil)
}

// noted is the function that waits until the journal has a note on the runs, for a caller that lets
// go of the tasks next.
func (a *attempt) noted(note func(*store.Runs) (wait func())) func() {
	return func() {
		note(a.unit.runs)()
		a.p.Journal.Close(a.unit.runs)
	}
}

// recorded tells what became of the tasks, which is committed: without verdicts they are done.
func (a *attempt) recorded(verdicts []decide.Verdict) {
	if verdicts == nil {
		a.watch.SetAll(decide.Done)
		return
	}
	for i, v := range verdicts {
		a.watch.Set(a.unit.Rows[i].ID, v)
	}
	a.p.Report.Recorded(a.unit.Rows, verdicts)
}
