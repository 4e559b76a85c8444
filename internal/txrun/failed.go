package txrun

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

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
		a.p.Report.Canceled(a.unit.h.Type, canceled)
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
