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

// group is the calls of a Tx handler for the tasks of one claim, each under a savepoint. The claim has
// one row in the journal and one COMMIT. It locks its tasks, and deletes each when its turn comes: until
// then they are waiting tasks for all that the handlers do.
//
//	BEGIN; lock all, DELETE the first; SAVEPOINT; journal
//	handler; RELEASE, session, DELETE the next, SAVEPOINT                   it succeeded
//	handler; ROLLBACK TO, RELEASE, session; result; DELETE the next, …      it failed
//	RELEASE and probe; COMMIT
//
// A task that fails is recorded as one of its own. Whatever leaves the transaction in doubt, and any
// error that the locks of other tasks in the group may have caused, undoes all of it: its tasks run
// one by one, where failures count.
type group struct {
	*attempt
	tasks    []*store.Task
	calls    chan func() // to the goroutine of the handlers, which keeps its stack from one to the next
	start    time.Time   // of the first call
	begun    []*store.Row
	verdicts []verdict // of begun

	kept string // statements that keep what a handler did, and put the session back
}

// callAll calls the handler for one task after the other until all are done, the handler's GroupWithin
// has passed or the relay stops, and commits. Tasks whose turn has not come are as they were.
func (g *group) callAll(ctx context.Context) error {
	a := g.attempt
	g.tasks, g.calls = a.tasks(), make(chan func())
	g.kept = "RELEASE SAVEPOINT " + savepoint + "; " + a.session.Reset
	go g.work()
	defer close(g.calls)
	g.start = time.Now()
	for i := 0; i < len(a.rows); {
		if i > 0 { // the first is allowed for
			if err := a.allow(timeoutOf(a.h, a.rows[i])); err != nil {
				return a.broken(ctx, callResult{}, err)
			}
		}
		next, stopped, err := g.callOne(ctx, i)
		if stopped {
			return err
		}
		for _, r := range a.rows[i+1 : next] {
			a.left = append(a.left, r)
			a.watch.set(r.ID, verdict{outcome: PutOff})
		}
		i = next
	}
	d := time.Since(g.start)
	a.warnSlow(d)
	a.r.groups.note(a.h, len(g.begun), d)
	a.rows = g.begun
	return g.succeed(ctx, callResult{}, g.verdicts)
}

// work calls handlers until the group or, by runtime.Goexit, its goroutine ends.
func (g *group) work() {
	for call := range g.calls {
		call()
	}
}

// callOne calls the handler for the i-th task, unless that is canceled by now, and claims the next.
// stopped: the group has ended.
func (g *group) callOne(ctx context.Context, i int) (next int, stopped bool, err error) {
	open, end, canceled := g.open.begin(g.r.Handling, g.rows[i].ID)
	defer end()
	if canceled {
		return g.settled(ctx, i, callResult{}, verdict{outcome: Canceled, done: true}, true)
	}
	timeout, start := timeoutOf(g.h, g.rows[i]), time.Now()
	limit, release := context.WithTimeoutCause(open, timeout+grace(timeout), timedOut(timeout))
	out := callIn(func(call func()) { g.calls <- call }, limit, g.h, g.tx, g.claim, g.tasks[i:i+1])
	release()
	if IsGoexit(out.err) {
		go g.work()
	}
	out.took = time.Since(start)
	g.watch.calledOne(g.tasks[i], start, out.took)
	if out.abandoned {
		return 0, true, g.abandon(out)
	}
	ending := newEnding(g.r.Log, g.h, out)
	if out.canceled {
		ending.canceled = g.open.canceledIDs()
	}
	v := ending.verdict(g.rows[i], out.err)
	keep := v.outcome == Done || v.outcome == Discarded || v.outcome == RunAgain
	if !keep && !out.drained && !out.canceled && g.maybeLocks(out.err) {
		return 0, true, g.split(ctx, out)
	}
	return g.settled(ctx, i, out, v, keep)
}

// settled keeps or undoes what the handler wrote for the i-th task, writes what becomes of it, and
// claims the next.
func (g *group) settled(ctx context.Context, i int, out callResult, v verdict, keep bool) (next int, stopped bool, err error) {
	r := g.rows[i]
	next, err = g.next(i, &v, keep)
	switch {
	case err == nil:
		g.begun, g.verdicts = append(g.begun, r), append(g.verdicts, v)
		return next, false, nil
	case !isBroken(err): // a statement had failed, and the handler did not say so
		out.err = refusedBy(err)
		return 0, true, g.split(ctx, out)
	case endedTransaction(pgerr.Code(err), err):
		g.abort()
		return 0, true, g.ended(ctx, r, v, out)
	}
	return 0, true, g.broken(ctx, out, err)
}

// next ends the savepoint of the i-th task and claims the next one that is as it was locked, if the
// group is to go on. It returns the number of the group's tasks if there is none.
func (g *group) next(i int, v *verdict, keep bool) (next int, err error) {
	goOn := time.Since(g.start) <= g.h.GroupWithin && !g.r.Stopping()
	err = g.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		before := g.kept
		if !keep {
			before = "ROLLBACK TO SAVEPOINT " + savepoint + "; " + before
		}
		if !v.done { // at once: the next handlers see it wait
			if _, err := c.ExecContext(ctx, before+"; "+g.own()); err != nil {
				return err
			}
			if err := writeVerdicts(ctx, g.Store, c, []*store.Row{g.rows[i]}, []verdict{*v}); err != nil {
				return err
			}
			before, v.written = g.own(), true
		}
		for next = i + 1; goOn && next < len(g.rows); next++ {
			claimed, err := g.claimMember(ctx, c, before, g.rows[next])
			if claimed || err != nil {
				return err
			}
			before = "RELEASE SAVEPOINT " + savepoint // of a task that was changed
		}
		next = len(g.rows)
		_, err := c.ExecContext(ctx, before+"; "+g.own()+"; SAVEPOINT "+savepoint)
		return err
	})
	return next, err
}

// own are the settings of the relay's own statements, which the session's reset has undone.
func (g *group) own() string {
	return g.untimed() + g.claimTx().Settings() + "; SET LOCAL statement_timeout = " + pg.Millis(pg.Bookkeeping)
}

// claimMember claims a task that the group has locked, unless a handler has changed or canceled it
// or its type is paused.
func (g *group) claimMember(ctx context.Context, c pg.Exclusive, before string, r *store.Row) (claimed bool, err error) {
	claimed, xid, err := g.ClaimMember(ctx, c, g.claimTx(), before, r)
	switch {
	case err == nil && xid != g.xid:
		return false, errOtherTransaction
	case claimed:
		g.uncounted++
	}
	return claimed, err
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
// against the rules. Tasks that it had not come to are as they were.
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
	v.written = false // in another transaction, if at all
	g.watch.all(PutOff)
	g.rows = append(g.begun, r)
	verdicts := append(g.verdicts, v)
	if err := g.r.writeCommitted(ctx, g.rows, verdicts, g.uncounted); err != nil {
		return err
	}
	g.tell(verdicts)
	return nil
}
