package run

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// group is the calls of a Tx handler for the tasks of one claim, each under a savepoint of its own
// below the claim's. The claim has one row in the journal and one COMMIT.
//
//	BEGIN; claim, SAVEPOINT a, SAVEPOINT b; journal
//	handler; RELEASE b, session, SAVEPOINT b    it succeeded
//	handler; ROLLBACK TO b, session             it failed
//	RELEASE a and probe; results; COMMIT
//
// A task that fails is recorded as one of its own. Whatever leaves the transaction in doubt, and any
// error that the locks of other tasks in the group may have caused, undoes all of it: its tasks run
// one by one, where failures count.
type group struct {
	*attempt
	tasks    []*store.Task
	calls    chan func() // to the goroutine of the handlers, which keeps its stack from one to the next
	verdicts []verdict   // of tasks whose handler has returned
}

// callAll calls the handler for one task after the other until all are done, the handler's GroupWithin
// has passed or the relay stops, and commits.
func (g *group) callAll(ctx context.Context) error {
	a := g.attempt
	g.tasks, g.calls = a.tasks(), make(chan func())
	go g.work()
	defer close(g.calls)
	start, failed := time.Now(), false
	for i, r := range a.rows {
		if i > 0 && (time.Since(start) > a.h.GroupWithin || a.r.Stopping()) {
			break
		}
		if i > 0 { // the first is allowed for
			if err := a.allow(timeoutOf(a.h, r)); err != nil {
				return a.broken(ctx, callResult{}, err)
			}
		}
		if stopped, err := g.callOne(ctx, i); stopped {
			return err
		}
		failed = failed || g.verdicts[i].outcome != Done
	}
	d := time.Since(start)
	a.watch.called(start, d, g.tasks)
	a.warnSlow(d)
	a.r.groups.note(a.h, len(g.verdicts), d)
	for _, r := range a.rows[len(g.verdicts):] {
		g.verdicts, failed = append(g.verdicts, untried(r)), true
	}
	if !failed {
		g.verdicts = nil
	}
	return g.succeed(ctx, callResult{}, g.verdicts)
}

// work calls handlers until the group or, by runtime.Goexit, its goroutine ends.
func (g *group) work() {
	for call := range g.calls {
		call()
	}
}

// untried is the verdict on a task of a group that ended before its turn. Runs that it lost before
// count.
func untried(r *store.Row) verdict {
	return verdict{outcome: PutOff, change: store.Change{Attempt: r.Begun() - 1, Keep: r.Undecided, Untried: true}}
}

// callOne calls the handler for the i-th task, unless that is canceled by now. stopped: the group has
// ended.
func (g *group) callOne(ctx context.Context, i int) (stopped bool, err error) {
	open, end, canceled := g.open.begin(g.r.Handling, g.rows[i].ID)
	defer end()
	if canceled {
		g.verdicts = append(g.verdicts, verdict{outcome: Canceled, done: true})
		return false, nil
	}
	timeout, start := timeoutOf(g.h, g.rows[i]), time.Now()
	limit, release := context.WithTimeoutCause(open, timeout+grace(timeout), timedOut(timeout))
	out := callIn(func(call func()) { g.calls <- call }, limit, g.h, g.tx, g.claim, g.tasks[i:i+1])
	release()
	if out.err == ErrGoexit {
		go g.work()
	}
	out.took = time.Since(start)
	if out.abandoned {
		return true, g.abandon(out)
	}
	return g.settle(ctx, g.rows[i], out)
}

// settle keeps or undoes what the handler wrote for a task. stopped: the group has ended.
func (g *group) settle(ctx context.Context, r *store.Row, out callResult) (stopped bool, err error) {
	end := newEnding(g.r.Log, g.h, out)
	if out.canceled {
		end.canceled = g.open.canceledIDs()
	}
	v := end.verdict(r, out.err)
	keep := v.outcome == Done || v.outcome == Discarded || v.outcome == RunAgain
	if !keep && !out.drained && !out.canceled && g.maybeLocks(out.err) {
		return true, g.split(ctx, out)
	}
	ends, begins := "RELEASE SAVEPOINT "+g.inner(), "; SAVEPOINT "+g.inner()
	if !keep {
		ends, begins = "ROLLBACK TO SAVEPOINT "+g.inner(), ""
	}
	err = g.exec(ends + "; " + g.session.Reset + "; " + g.untimed() + claimSettings(g.h) + "; SET LOCAL statement_timeout = " + pg.Millis(g.h.Timeout) + begins)
	switch {
	case err == nil:
		g.verdicts = append(g.verdicts, v)
		return false, nil
	case !isBroken(err): // a statement had failed, and the handler did not say so
		out.err = refusedBy(err)
		return true, g.split(ctx, out)
	case endedTransaction(pgerr.Code(err), err):
		g.abort()
		return true, g.ended(ctx, r, v, out)
	}
	return true, g.broken(ctx, out, err)
}

// maybeLocks reports whether a handler's error may be due to locks that its transaction holds for
// other tasks: a conflict, a lock that took too long, or a failed statement whose error the handler
// keeps to itself.
func (g *group) maybeLocks(err error) bool {
	if f, ok := err.(*failure); ok && f.code != "" {
		return slices.Contains([]string{"40001", "40P01", "55P03"}, f.code)
	}
	return pgerr.Code(g.exec("/* outbox: probe */ SELECT 1")) == "25P02"
}

// ended records what became of the tasks of a group whose transaction the handler of r ended,
// against the rules. If it committed, tasks that it had not come to are written back.
func (g *group) ended(ctx context.Context, r *store.Row, v verdict, out callResult) error {
	status, err := g.TransactionStatus(g.xid)
	if err != nil || status != "committed" {
		return g.outOfBand(cmp.Or(out.err, errRolledBack), err)
	}
	g.r.Log.Error("outbox: the handler committed the transaction of its claim; it is the relay's to commit", "task_type", g.h.Type, "tasks", []int64{r.ID})
	g.r.Journal.ForgetRuns(g.runs)
	if out.err != nil && v.outcome != RunAgain {
		v = committedDead(r, out.err)
	}
	verdicts := append(g.verdicts, v)
	for _, r := range g.rows[len(verdicts):] {
		verdicts = append(verdicts, untried(r))
	}
	if err := g.r.writeCommitted(ctx, g.rows, verdicts); err != nil {
		return err
	}
	g.tell(verdicts)
	return nil
}
