package txrun

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
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
	a        *attempt
	rows     []*store.Row // as locked
	tasks    []*store.Task
	start    time.Time // of the first call
	begun    []*store.Row
	verdicts []decide.Verdict // of begun
}

func newGroup(a *attempt) *group {
	return &group{a: a, rows: a.unit.Rows, tasks: a.unit.Tasks(), start: time.Now()}
}

// run calls the handler for one task after the other until all are done, the handler's GroupWithin
// has passed or the relay stops, and commits. Tasks whose turn has not come are as they were.
func (g *group) run(ctx context.Context) error {
	a, u := g.a, g.a.unit
	returned := a.watchSlow()
	defer returned()
	for i := 0; i < len(g.rows); {
		if i > 0 { // the first is allowed for
			if err := u.Allow(decide.Timeout(u.h, g.rows[i])); err != nil {
				return g.stepFailed(ctx, i, decide.Verdict{}, call.Result{}, err)
			}
		}
		next, stopped, err := g.call(ctx, i)
		if stopped {
			return err
		}
		for _, r := range g.rows[i+1 : next] {
			a.left = append(a.left, r)
			a.watch.Set(r.ID, decide.Verdict{Outcome: decide.Released})
		}
		i = next
	}
	d := time.Since(g.start)
	returned()
	a.groups.note(u.h, len(g.begun), d)
	u.Rows = g.begun
	end := u.Tx.End(nil, func(refused error) apptx.Plan {
		if refused == nil {
			return u.Keep(g.verdicts)
		}
		return g.split(refused)
	})
	return g.ended(ctx, call.Result{}, end)
}

// split is the plan that undoes all: the tasks run one by one, where failures count.
func (g *group) split(failure error) apptx.Plan {
	g.a.logSplit(failure)
	return apptx.Plan{Action: apptx.Back, Failure: failure, Before: g.a.noted(g.a.p.Journal.MarkLost)}
}

// ended acts on the end of the group's transaction, in which the result of each task of begun is written.
func (g *group) ended(ctx context.Context, out call.Result, end apptx.Ended) error {
	switch {
	case end.How == apptx.RolledBack:
		g.a.watch.SetAll(decide.Released)
		g.a.alone = store.IDs(g.a.unit.Rows)
		return nil
	case end.How == apptx.EndedByCode && end.Err == nil && end.Committed:
		return g.committed(ctx)
	case end.How == apptx.EndedByCode:
		return g.a.outOfBand(end.Failure, end.Err)
	}
	return g.a.ended(ctx, out, end, g.verdicts)
}

// endedIn is ended before the result of the i-th task was written, whose handler was the last to run.
func (g *group) endedIn(ctx context.Context, i int, v decide.Verdict, out call.Result, end apptx.Ended) error {
	if end.Committed {
		if out.Err != nil && !v.Outcome.Succeeds() {
			v = decide.Committed(g.rows[i], out.Err, nil)
		}
		v.Written = false // in another transaction, if at all
		g.note(i, v)
	}
	return g.ended(ctx, out, end)
}

func (g *group) note(i int, v decide.Verdict) {
	g.begun, g.verdicts = append(g.begun, g.rows[i]), append(g.verdicts, v)
}

// call calls the handler for the i-th task, unless that is canceled by now, and claims the next.
// stopped: the group has ended.
func (g *group) call(ctx context.Context, i int) (next int, stopped bool, err error) {
	a, u := g.a, g.a.unit
	open, end, canceled := a.open.begin(a.p.Handling, g.rows[i].ID)
	defer end()
	if canceled {
		return g.settle(ctx, i, call.Result{}, decide.Verdict{Outcome: decide.Canceled}, true)
	}
	a.watch.Calling(g.tasks[i])
	timeout, start := decide.Timeout(u.h, g.rows[i]), time.Now()
	limit, release := context.WithTimeoutCause(open, timeout+call.Grace(timeout), call.TimedOut(timeout))
	out := call.Run(limit, func(ctx context.Context) error { return u.h.Run(ctx, u.Tx.SQL(), a.claim, g.tasks[i:i+1]) })
	release()
	u.notes.Called()
	a.watch.CalledOne(g.rows[i].ID, start, out.Took)
	if out.Abandoned {
		return 0, true, a.abandon(out)
	}
	run := decide.NewRun(a.p.Report.Log, u.h, out)
	if out.Canceled {
		run.Canceled = a.open.canceledIDs()
	}
	v := run.Verdict(g.rows[i], out.Err)
	keep := v.Outcome.Succeeds()
	if !keep && !out.Drained && !out.Canceled && g.maybeLocks(out.Err) {
		return 0, true, g.endedIn(ctx, i, v, out, u.Tx.End(out.Err, g.split))
	}
	return g.settle(ctx, i, out, v, keep)
}

// settle keeps or undoes what the handler wrote for the i-th task, writes what becomes of it, and
// claims the next.
func (g *group) settle(ctx context.Context, i int, out call.Result, v decide.Verdict,
	keep bool) (next int, stopped bool, err error) {
	if next, err = g.next(i, &v, keep); err != nil {
		return 0, true, g.stepFailed(ctx, i, v, out, err)
	}
	g.note(i, v)
	return next, false, nil
}

// stepFailed ends the group after an error between two tasks.
func (g *group) stepFailed(ctx context.Context, i int, v decide.Verdict, out call.Result, err error) error {
	end, refused := g.a.unit.Tx.StepFailed(out.Err, err)
	if refused != nil { // a statement had failed, and the handler did not say so
		end = g.a.unit.Tx.End(refused, g.split)
	}
	return g.endedIn(ctx, i, v, out, end)
}

// next ends the savepoint of the i-th task and claims the next task that is as it was locked, if the
// group is to go on. It returns the number of the group's tasks if there is none.
func (g *group) next(i int, v *decide.Verdict, keep bool) (next int, err error) {
	u := g.a.unit
	goOn := time.Since(g.start) <= u.h.GroupWithin && !g.a.p.stopping()
	err = u.Tx.Exclusively(func(ctx context.Context, c pg.Exclusive) error {
		before := u.Tx.Step(keep)
		if !v.Outcome.Gone() { // at once: the next handlers see it wait
			if _, err := c.ExecContext(ctx, before+"; "+g.own()); err != nil {
				return err
			}
			if err := apptx.WriteVerdicts(ctx, g.a.p.Store, c, g.rows[i:i+1], []decide.Verdict{*v}); err != nil {
				return err
			}
			before, v.Written = g.own(), true
		}
		for next = i + 1; goOn && next < len(g.rows); next++ {
			claimed, err := g.claimMember(ctx, c, before, g.rows[next])
			if claimed || err != nil {
				return err
			}
			before = "RELEASE SAVEPOINT " + apptx.Savepoint // of a task that was changed
		}
		next = len(g.rows)
		_, err := c.ExecContext(ctx, before+"; "+g.own()+"; SAVEPOINT "+apptx.Savepoint)
		return err
	})
	return next, err
}

// own are the settings of the relay's own statements, which the session's reset has undone.
func (g *group) own() string {
	of := g.a.unit.of
	return of.Untimed + of.Settings() + "; SET LOCAL statement_timeout = " + pg.Millis(pg.Bookkeeping)
}

func (g *group) claimMember(ctx context.Context, c pg.Exclusive, before string,
	r *store.Row) (claimed bool, err error) {
	u := g.a.unit
	claimed, xid, err := g.a.p.Store.ClaimMember(ctx, c, u.of, before, r)
	if err == nil {
		err = u.Tx.Is(xid)
	}
	if claimed && err == nil {
		u.uncounted++
	}
	return claimed && err == nil, err
}

// maybeLocks reports whether a handler's error may be due to locks that its transaction holds for
// other tasks: a conflict, a lock that took too long, or a failed statement whose error the handler
// keeps to itself.
func (g *group) maybeLocks(err error) bool {
	if code := call.SQLState(err); code != "" {
		return slices.Contains([]string{"40001", "40P01", "55P03"}, code)
	}
	return g.a.unit.Tx.Aborted()
}

// committed records what became of the tasks of a group whose transaction a handler committed, against
// the rules. Tasks that it had not come to are as they were.
func (g *group) committed(ctx context.Context) error {
	a := g.a
	a.logCommitted([]int64{g.begun[len(g.begun)-1].ID})
	a.p.Journal.ForgetRuns(a.unit.runs)
	a.watch.SetAll(decide.Released)
	a.unit.Rows = g.begun
	err := apptx.RecordCommitted(ctx, a.p.Store, a.p.Report, g.begun, g.verdicts, a.unit.uncounted)
	if err == nil {
		a.recorded(g.verdicts)
	}
	return err
}

// groupSizes are how many tasks the next group of a type claims: as many as probably run within the
// handler's GroupWithin, so that a group seldom locks tasks whose turn does not come. The first
// groups of a relay have one task each, until one has ended.
type groupSizes struct {
	mu   sync.Mutex
	each map[*handler.Handler]time.Duration // a task takes, lately
}

// of is the most that one claim of h's tasks takes.
func (g *groupSizes) of(h *handler.Handler) int {
	if h.GroupSize <= 1 {
		return h.BatchSize
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	each := g.each[h]
	if each == 0 { // not known yet: the first one may be slow
		return 1
	}
	return min(max(int(h.GroupWithin*2/3/each), 1), h.GroupSize)
}

// note learns from a claim of which so many tasks took a time.
func (g *groupSizes) note(h *handler.Handler, tasks int, took time.Duration) {
	if h.GroupSize <= 1 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.each == nil {
		g.each = map[*handler.Handler]time.Duration{}
	}
	each := max(took/time.Duration(tasks), 1)
	if before := g.each[h]; before > 0 {
		each = (7*before + each) / 8
	}
	g.each[h] = each
}

// failed notes that a group failed as a whole: the next ones begin with one task.
func (g *groupSizes) failed(h *handler.Handler) { g.note(h, 1, 8*h.GroupWithin) }
