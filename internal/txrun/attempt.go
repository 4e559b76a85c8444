package txrun

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
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
		u.notes.Again()
		tasks = u.Tasks() // as they were: the handler may have changed the others
		out = call.Run(limit, run)
	}
	returned()
	u.notes.Called()
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
			work, verdicts = decide.Undo, []decide.Verdict{{Outcome: decide.Canceled}}
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
		if verdicts == nil || !decide.Succeed(verdicts) {
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
	forget := func() (wait func()) { return a.p.Journal.ForgetRuns(a.unit.runs) }
	switch end.Sequel(out) {
	case apptx.Tell:
		a.recorded(verdicts)
	case apptx.LeaveAsFound:
		forget()
		return end.Err
	case apptx.GiveBack:
		forget()()
		a.watch.SetAll(decide.Drained)
	case apptx.RemoveCanceled:
		forget()
		a.removeCanceled()
	case apptx.SeeCommitted:
		return a.endedByCode(ctx, end, verdicts)
	case apptx.NoteLostConn:
		return a.lostConnection(end.Err)
	case apptx.RecordApart:
		var cause error
		if end.How == apptx.Failed {
			cause = end.Err
		}
		return a.outOfBand(end.Failure, cause)
	}
	return nil
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

// endedByCode records what became of tasks whose handler ended the transaction, against the rules.
func (a *attempt) endedByCode(ctx context.Context, end apptx.Ended, verdicts []decide.Verdict) error {
	rows := a.unit.Rows
	switch {
	case end.Err != nil:
		a.p.Journal.MarkLost(a.unit.runs)
		return end.Err
	case !end.Committed:
		return a.outOfBand(end.Failure, nil)
	}
	run := decide.Run{Kind: a.unit.h.Kind, Result: call.Result{Err: end.Failure}}
	verdicts = run.Committed(rows, verdicts)
	if verdicts == nil || slices.ContainsFunc(verdicts, func(v decide.Verdict) bool { return v.Outcome != decide.Dead }) {
		a.logCommitted(store.IDs(rows)) // dead letters are in the log anyway
		a.p.Journal.ForgetRuns(a.unit.runs)
	}
	err := apptx.RecordCommitted(ctx, a.p.Store, a.p.Report, rows, verdicts, 0)
	if err == nil {
		a.recorded(verdicts)
	}
	return err
}

func (a *attempt) logCommitted(taskIDs []int64) {
	a.p.Report.Log.Error("outbox: the handler committed the transaction of its claim; it is the relay's to commit",
		"task_type", a.unit.h.Type, "tasks", taskIDs)
}

func (a *attempt) logSplit(err error) {
	kind := "batch"
	if a.unit.h.GroupSize > 1 {
		kind = "group"
		a.groups.failed(a.unit.h)
	}
	a.p.Report.Log.Warn("outbox: a "+kind+" failed; its tasks run one by one",
		"task_type", a.unit.h.Type, "tasks", len(a.unit.Rows), pgerr.LogAttr(err))
}

// abandon ends a claim whose handler does not return.
func (a *attempt) abandon(out call.Result) error {
	a.unit.Tx.Abandon()
	a.p.Report.Log.Error("outbox: a handler does not return after its context's end; it was abandoned",
		"task_type", a.unit.h.Type, "tasks", store.IDs(a.unit.Rows))
	several := len(a.unit.Rows) > 1
	switch {
	case out.Drained:
		a.p.Journal.ForgetRuns(a.unit.runs)
		a.watch.SetAll(decide.Drained)
		return nil
	case several:
		a.p.Journal.MarkLost(a.unit.runs)
		a.watch.SetAll(decide.Released)
	case out.Canceled:
		a.p.Journal.ForgetRuns(a.unit.runs)
	default:
		return a.outOfBand(out.Err, nil)
	}
	if out.Canceled {
		a.removeCanceled()
	}
	return nil
}

// lostConnection ends a claim whose connection broke while the handler ran. It is no attempt, but
// it is noted, as it may be the task's SQL that kills its backend; and the task waits for its
// backoff.
func (a *attempt) lostConnection(err error) error {
	a.p.Journal.MarkLost(a.unit.runs)
	bounded, cancel := context.WithTimeout(context.Background(), pg.StatementTimeout)
	defer cancel()
	for _, r := range a.unit.Rows {
		wait := decide.LostWait(a.p.Report.Log, a.unit.h, err)
		if a.p.Store.Delay(bounded, r, wait) != nil {
			break // the server is away: it will not be claimed soon
		}
		a.p.Report.Due.Schedule(wait)
	}
	return err
}

// outOfBand records a failed attempt in a transaction of its own. cause, if any, is why it had to.
func (a *attempt) outOfBand(failure, cause error) error {
	h, runs := a.unit.h, a.unit.runs
	if len(runs.IDs) > 1 {
		// The failure may be any member's: they run one by one, where it counts.
		a.logSplit(failure)
		a.p.Journal.MarkLost(runs)
		a.watch.SetAll(decide.Released)
		return cause
	}
	t := a.unit.Rows[0]
	v := decide.NewRun(a.p.Report.Log, h, call.Result{Err: failure, Took: a.took}).Failed(t, handler.ResultOf(failure),
		t.Begun())
	var refused error
	written := retried(func() (found bool) {
		found, refused = a.p.Store.RecordAside(t, v.Change)
		return found && refused == nil
	})
	if written {
		a.recorded([]decide.Verdict{v})
		return cause
	}
	if cause = cmp.Or(cause, refused); cause != nil {
		a.p.Report.Log.Warn("outbox: an attempt failed, which cannot be recorded; the task runs again",
			"task_type", t.TaskType, "task_id", t.ID,
			"because", pgerr.LogText(cause), pgerr.LogAttr(failure))
	}
	if v.Outcome == decide.Snoozed || v.Outcome == decide.Throttled {
		a.p.Journal.ForgetRuns(runs) // no attempt
		return cause
	}
	err := a.p.Store.OrphanRun(t, runs.Token)
	if err == nil {
		a.watch.SetAll(decide.Failed)
	}
	return errors.Join(cause, err)
}

// removeCanceled removes the canceled tasks of a claim that was rolled back, if their rows can be
// locked; else relays do with their heartbeats.
func (a *attempt) removeCanceled() {
	canceled := a.open.canceledIDs()
	a.watch.SetCanceled(canceled)
	removed := retried(func() bool {
		var n int
		err := a.p.Store.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
			n, err = a.p.Store.RemoveCanceled(ctx, tx, canceled)
			return err
		})
		return err == nil && n >= len(canceled)
	})
	if removed {
		a.p.Report.Together(a.unit.h.Type, decide.Canceled, canceled, nil)
	}
}

// retried tries up to six times within 1.1 s: the backend of a claim is about to notice its end, and
// locks the rows until then.
func retried(try func() bool) bool {
	for n := range 6 {
		time.Sleep(time.Duration(n*n) * 20 * time.Millisecond)
		if try() {
			return true
		}
	}
	return false
}

// againAfterDeadlock undoes what a handler with GroupCommit wrote, and reports whether to call it
// again within its timeout: in a transaction of its own, its task was the victim of a deadlock,
// which may be with a group that holds the locks of other tasks.
func (a *attempt) againAfterDeadlock(ctx context.Context, out call.Result, try int) bool {
	if call.SQLState(out.Err) != "40P01" || a.unit.h.GroupSize <= 1 || ctx.Err() != nil {
		return false
	}
	pause := min(10*time.Millisecond<<min(try, 10), time.Second)
	select {
	case <-time.After(pause/2 + rand.N(pause)):
	case <-ctx.Done():
		return false
	}
	return a.unit.Tx.Again() == nil
}

const (
	slowTransaction = 5 * time.Second // when the relay warns of a Tx or Batch handler
	slowLook        = 2 * time.Second // for the look at its backend
)

// backend is what the backend of a transaction does. It is zero if that is not known.
type backend struct{ state, waitType, wait, blockers string }

const backendSQL = `/* outbox: look what the transaction of a handler waits for */
SELECT COALESCE(a.state, ''), COALESCE(a.wait_event_type, ''), COALESCE(a.wait_event, ''),
       pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(l.pid), ' ')
  FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
   AND l.transactionid = $1::pg_catalog.text::pg_catalog.xid8::pg_catalog.xid`

// warnSlow looks at a handler's transaction on another connection, and gives the advice that fits.
func (p *Params) warnSlow(h *handler.Handler, xid string, tasks int) {
	ctx, cancel := context.WithTimeout(context.Background(), slowLook)
	defer cancel()
	var b backend
	err := p.Store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, backendSQL, xid).Scan(&b.state, &b.waitType, &b.wait, &b.blockers)
	})
	if err != nil { // no connection is free, or the transaction has ended
		b = backend{}
	}
	attrs := []any{"task_type", h.Type, "tasks", tasks, "after", slowTransaction}
	if b.state != "" {
		attrs = append(attrs, "state", b.state)
	}
	if b.waitType != "" {
		attrs = append(attrs, "waits_for", b.waitType+" "+b.wait)
	}
	if b.blockers != "" {
		attrs = append(attrs, "blocked_by_pid", b.blockers)
	}
	p.Report.Log.Warn("outbox: a handler keeps a transaction open for long"+b.advice(h.Forwards), attrs...)
}

// advice is what the log says besides.
func (b backend) advice(forwards bool) string {
	switch {
	case b.waitType == "Lock":
		return ": it waits for a lock; shorten the transactions that hold it"
	case b.state == "active":
		return ": its statement is slow; look at the statement's plan"
	case forwards:
		return ": the broker has not acknowledged its events"
	case b.state == "":
		return ""
	}
	return ": it sends no statement; if it waits for anything but PostgreSQL, register it as Leased"
}
