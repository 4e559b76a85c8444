package run

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// attempt is one claim of a Tx or Batch handler, from BEGIN to COMMIT: the transaction that deletes
// the tasks is the one that the handler works in.
//
//	BEGIN; claim; SAVEPOINT; handler; probe; RELEASE; COMMIT
//
// What the handler did is undone by ROLLBACK TO, and the failure recorded in the same transaction.
// Whenever anything else than expected comes back, the transaction is rolled back, its connection
// closed, and what is to be recorded is recorded in another one: never COMMIT when in doubt.
type attempt struct {
	unit
	r       *Runner
	soloRun *soloRun // of a suspect
	claim   handlers.Claim
	watch   *watch
	again   *handlers.Result // all tasks are to run again

	mu       sync.Mutex
	cancel   context.CancelCauseFunc // of the handler's context, once there is one
	canceled map[int64]bool
}

// runTx claims with the given claim and runs the handler. claimed is called once, with what was
// claimed. The error is the database's: it is no attempt and a reason to slow down.
func (r *Runner) RunTx(ctx context.Context, h *handlers.Handler, c claimPlan, claimed func([]*store.Row)) error {
	a := &attempt{unit: unit{guardedTx: newGuardedTx(&r.Store), h: h}, r: r, claim: handlers.Claim{Began: time.Now()}}
	defer func() {
		a.rows = nil
		a.recycle()
	}()
	defer a.done()
	err := a.begin(ctx)
	if err != nil {
		return err
	}
	if h.MaxRunningTotal > 0 {
		slots, err := r.LockSlots(ctx, h.Type, a.tx, 1)
		if err != nil {
			a.abort()
			return err
		}
		if len(slots) == 0 {
			a.giveBack()
			return ErrNoSlot
		}
	}
	if err = a.take(c); err != nil {
		a.abort()
		return err
	}
	a.claim.Ended = time.Now()
	if len(a.rows) == 0 {
		if err := a.tx.Rollback(); err != nil {
			pg.Drop(a.conn)
			return err
		}
		r.Conns.Put(a.conn)
		claimed(nil)
		r.tellClaim(h, 0, a.claim.Began, a.claim.Ended)
		return nil
	}
	r.started(a)
	defer r.stopped(a)
	claimed(a.rows)
	r.tellClaim(h, len(a.rows), a.claim.Began, a.claim.Ended)
	a.watch = newWatch(a.r.Events, h, a.rows, a.claim.Ended)
	err = a.run(ctx)
	a.watch.tell()
	return err
}

func (a *attempt) run(ctx context.Context) error {
	a.runs = store.NewRuns(a.rows, a.xid)
	recorded := a.r.Journal.Record(a.runs)
	defer a.r.Journal.Close(a.runs)
	timeout := timeoutOf(a.h, a.rows...)
	err := a.allow(timeout)
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
		// A suspect is journalled when it is about to run. Before, another suspect may have killed
		// the process, which is no lost run of this one.
		defer a.soloRun.over()
		a.runs.Suspect = true
		if _, err := a.r.Journal.Record(a.runs)(); err != nil {
			a.giveBackRuns()
			return err
		}
	}
	tasks := a.tasks()
	a.soloRun.begun()
	start := time.Now()
	parent, endParent := a.handlerContext()
	defer endParent()
	limit, end := context.WithTimeoutCause(parent, timeout+grace(timeout), timeoutError(timeout))
	defer end()
	out := callHandler(limit, a.h, a.tx, a.claim, tasks)
	d := time.Since(start)
	a.watch.called(start, d, tasks)
	if d > slowTransaction {
		a.r.Log.Warn("outbox: a handler kept a transaction open for long; register it as Leased", "task_type", a.h.Type, "duration", d.Round(time.Millisecond))
	}
	return a.settle(ctx, out)
}

// slowTransaction is when the relay warns of a Tx or Batch handler.
const slowTransaction = 5 * time.Second

// judge acts on what earlier runs left. It reports whether that was all; if not, the claim is one
// suspect, and a.soloRun, if it needs one, is taken.
func (a *attempt) judge(ctx context.Context, found map[int64][]store.Earlier) (done bool, err error) {
	if len(a.rows) > 1 {
		return a.judgeBatch(ctx, found)
	}
	r := a.rows[0]
	judged, wait := r.Judge(found[r.ID])
	if judged == store.Suspect && r.Lost+len(r.Undecided) > 0 {
		if a.soloRun = a.r.soloRun(); a.soloRun == nil {
			judged, wait = store.Postponed, aside()
		}
	}
	v := verdict{outcome: Dead}
	switch judged {
	case store.Plain, store.Suspect:
		return false, nil
	case store.Postponed:
		defer a.r.postponed(wait) // from when it is written
		v = verdict{outcome: PutOff, change: store.Change{Attempt: r.Attempt, Wait: wait, Untried: true}}
		for _, e := range found[r.ID] {
			v.change.Keep = append(v.change.Keep, e.Token)
		}
	case store.DeadLostConns:
		v.change = store.Change{Attempt: min(r.Attempt+r.Lost, r.Max), Reason: store.ReasonLostConnections, Err: r.LostText(judged)}
	default:
		v.change = store.Change{Attempt: r.Max, Reason: store.ReasonAttempts, Err: r.LostText(judged)}
	}
	return true, a.close(v)
}

// judgeBatch gives the whole batch back if any of it has a history, and runs those one by one.
func (a *attempt) judgeBatch(ctx context.Context, found map[int64][]store.Earlier) (done bool, err error) {
	var solo []int64
	for _, r := range a.rows {
		if len(found[r.ID]) > 0 || r.Exhausted() {
			solo = append(solo, r.ID)
		}
	}
	if len(solo) == 0 {
		return false, nil
	}
	a.r.Journal.ForgetRuns(a.runs)()
	a.r.Journal.Close(a.runs)
	a.giveBack()
	a.watch.all(PutOff)
	a.watch.tell()
	return true, a.r.runSolo(ctx, a.h, solo)
}

// runSolo runs the tasks one by one, each in a transaction of its own.
func (r *Runner) runSolo(ctx context.Context, h *handlers.Handler, taskIDs []int64) error {
	for _, id := range taskIDs {
		if r.Stopping() {
			return nil
		}
		err := r.RunTx(ctx, h, claimOne{id}, func([]*store.Row) {})
		if errors.Is(err, ErrNoSlot) {
			return nil // another call has it; whoever claims the rest next finds the runs in the journal
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close writes what becomes of a task whose handler is not called, and commits. After an error
// nothing is committed, or, if it is the commit's, perhaps.
func (a *attempt) close(v verdict) error {
	verdicts := []verdict{v}
	if _, err := a.reject(verdicts); err != nil {
		a.abort()
		a.r.Journal.ForgetRuns(a.runs)
		return err
	}
	err := a.commit(verdicts)
	if err != nil {
		a.r.Journal.ForgetRuns(a.runs)
	}
	return err
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
			a.r.due(v.change.Wait)
		}
	}
	if len(discarded) > 0 {
		a.r.Log.Info("outbox: tasks were discarded by their handler", "task_type", a.h.Type, "tasks", discarded, "error", pgerr.Text(because))
	}
}
