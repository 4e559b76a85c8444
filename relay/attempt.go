package relay

import (
	"context"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
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
	guardedTx
	r    *runner
	h    *handler.Handler
	rows []*store.Row
	rowRoom
	runs    *store.Runs
	dead    []func() // what to tell once the commit is done
	soloRun *soloRun // of a suspect
	claim   handler.Claim
	watch   *watch
	again   *handler.Result // all tasks are to run again

	mu       sync.Mutex
	cancel   context.CancelCauseFunc // of the handler's context, once there is one
	canceled map[int64]bool
}

// runTx claims with the given claim and runs the handler. claimed is called once, with what was
// claimed. The error is the database's: it is no attempt and a reason to slow down.
func (r *runner) runTx(ctx context.Context, h *handler.Handler, c claimPlan, claimed func([]*store.Row)) error {
	a := &attempt{guardedTx: newGuardedTx(&r.Store), r: r, h: h, claim: handler.Claim{Began: time.Now()}}
	defer func() {
		a.rows = nil
		a.recycle()
	}()
	defer a.done()
	var err error
	if a.conn, a.tx, a.session, err = r.Conns.BeginSession(ctx); err != nil {
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
			return errNoSlot
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
	a.watch = newWatch(a.r.observers, h, a.rows, a.claim.Ended)
	err = a.run(ctx)
	a.watch.tell()
	return err
}

func (a *attempt) run(ctx context.Context) error {
	a.runs = store.NewRuns(a.rows, a.xid)
	recorded := a.r.journal.Record(a.runs)
	defer a.r.journal.Close(a.runs)
	timeout := timeoutOf(a.h, a.rows...)
	var err error
	if timeout != a.h.Timeout { // the claim has set it for that
		err = a.exec("SET LOCAL idle_in_transaction_session_timeout = " + pg.Millis(idleFor(timeout)) + "; SET LOCAL statement_timeout = " + pg.Millis(timeout))
	}
	found, journalErr := recorded()
	if err = errors.Join(err, journalErr); err != nil {
		a.abort()
		if !pgerr.Refusal(journalErr) { // else nothing was written
			a.r.journal.ForgetRuns(a.runs)
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
		if _, err := a.r.journal.Record(a.runs)(); err != nil {
			a.giveBackRuns()
			return err
		}
	}
	block := make([]store.Task, len(a.rows))
	tasks := make([]*store.Task, len(a.rows))
	for i, r := range a.rows {
		tasks[i] = &block[i]
		r.Fill(tasks[i], r.Begun()+len(r.Undecided))
	}
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
		a.r.log.Warn("outbox: a handler kept a transaction open for long; register it as Leased", "task_type", a.h.Type, "duration", d.Round(time.Millisecond))
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
	v, wait := r.Judge(found[r.ID])
	if v == store.Suspect && r.Lost+len(r.Undecided) > 0 {
		if a.soloRun = a.r.soloRun(); a.soloRun == nil {
			v, wait = store.Postponed, aside()
		}
	}
	var c store.Change
	switch v {
	case store.Plain, store.Suspect:
		return false, nil
	case store.Postponed:
		defer a.r.postponed(wait) // from when it is written
		c = store.Change{Attempt: r.Attempt, Wait: wait, Untried: true}
		for _, e := range found[r.ID] {
			c.Keep = append(c.Keep, e.Token)
		}
	case store.DeadLostConns:
		c = store.Change{Attempt: min(r.Attempt+r.Lost, r.Max), Reason: store.ReasonLostConnections, Err: r.LostText(v)}
	default:
		c = store.Change{Attempt: r.Max, Reason: store.ReasonAttempts, Err: r.LostText(v)}
	}
	return true, a.close(r, c)
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
	a.r.journal.ForgetRuns(a.runs)()
	a.r.journal.Close(a.runs)
	a.giveBack()
	a.watch.all(PutOff)
	a.watch.tell()
	return true, a.r.runSolo(ctx, a.h, solo)
}

// runSolo runs the tasks one by one, each in a transaction of its own.
func (r *runner) runSolo(ctx context.Context, h *handler.Handler, taskIDs []int64) error {
	for _, id := range taskIDs {
		if r.stopping() {
			return nil
		}
		err := r.runTx(ctx, h, claimOne{id}, func([]*store.Row) {})
		if errors.Is(err, errNoSlot) {
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
func (a *attempt) close(t *store.Row, next store.Change) error {
	err := a.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := a.undo(ctx, c); err != nil {
			return err
		}
		return a.put(ctx, c, t, next)
	})
	if err != nil {
		a.abort()
		a.r.journal.ForgetRuns(a.runs)
		return err
	}
	if err = a.commit(); err != nil {
		a.r.journal.ForgetRuns(a.runs)
	}
	return err
}

func (a *attempt) commit() error {
	if err := a.tx.Commit(); err != nil {
		pg.Drop(a.conn)
		return err
	}
	a.keepConn()
	a.watch.confirm()
	for _, tell := range a.dead {
		tell()
	}
	return nil
}

// take claims on the attempt's connection, and sets its savepoint if it finds tasks.
func (a *attempt) take(c claimPlan) error {
	return a.exclusively(func(ctx context.Context, conn pg.Exclusive) error {
		before, after := "", ""
		var block []store.Row
		for i, more := 0, true; more; i++ {
			var p claimPart
			if p, more = c.part(a.h, i, len(a.rows)); p.limit == 0 {
				break
			}
			switch {
			case p.settled:
				after = a.Conns.Untimed() + "SAVEPOINT " + a.savepoint
			case !more:
				after = a.savepointStatements(a.h.Timeout)
			}
			if i == 0 && !p.settled {
				before = a.Conns.Untimed() + claimSettings(a.h)
			}
			found := len(a.rows)
			err := conn.Together(ctx, before, a.SQL(p.query), p.args, after, func(values []driver.Value) (err error) {
				if p.text && values[0] == nil {
					return nil
				}
				if len(block) == 0 {
					block = a.rowsFor(p.limit)
				}
				r := &block[0]
				block = block[1:]
				r.TaskType, r.Max = a.h.Type, a.h.MaxAttempts
				a.rows = append(a.rows, r)
				if p.text {
					a.xid, err = r.FromText(pg.Text(values[0]))
					return err
				}
				if xid := values[len(values)-1]; xid != nil {
					a.xid = pg.Text(xid)
				}
				return r.FromDriver(values)
			})
			if err = errors.Join(err, store.TooMany(len(a.rows)-found, p.limit)); err != nil {
				return err
			}
			before = ""
		}
		store.InOrder(a.rows)
		if len(a.rows) == 0 || after != "" {
			return nil
		}
		_, err := conn.ExecContext(ctx, a.savepointStatements(a.h.Timeout))
		return err
	})
}

func (a *attempt) savepointStatements(timeout time.Duration) string {
	return "SAVEPOINT " + a.savepoint + "; SET LOCAL statement_timeout = " + pg.Millis(timeout)
}
