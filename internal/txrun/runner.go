// Package txrun runs Tx and Batch handlers: a claim's transaction, from BEGIN to COMMIT, deletes the
// tasks, and the handler works in it.
//
//	BEGIN; claim; SAVEPOINT; journal; handler; results; COMMIT
//
// Unit is the work in the transaction, which outboxtest shares; attempt is the claim of a relay around
// it. runner.go has the ends before the handler is called, attempt.go those after it. With
// GroupCommit a claim locks several tasks; group.go deletes each and calls its handler in turn.
package txrun

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// Runner claims and runs the Tx and Batch tasks of one run of a relay.
type Runner struct {
	p      *Params
	open   *openClaims
	groups *groupSizes
}

// New returns a Runner.
func New(p Params) *Runner { return &Runner{p: &p, open: newOpenClaims(), groups: &groupSizes{}} }

// Underway are the tasks of open claims, by type. Of a batch or a group all count.
func (r *Runner) Underway() map[string][]int64 { return r.open.underway() }

// maxExcluded bounds how many running tasks a poll leaves out; more only cost a claim that finds
// little.
const maxExcluded = 1000

// RunningIDs are the tasks of open claims; some of them, if they are very many.
func (r *Runner) RunningIDs() []int64 {
	ids := []int64{}
	for _, some := range r.open.underway() {
		ids = append(ids, some...)
	}
	return ids[:min(len(ids), maxExcluded)]
}

// Cancel ends the contexts of the handlers of canceled tasks.
func (r *Runner) Cancel(canceled map[int64]bool) { r.open.cancel(canceled) }

// ErrNoSlot is the error of a claim of a type whose slots are all in use.
var ErrNoSlot = errors.New("relay: other calls of the type hold all its slots")

// ClaimSize is how many of h's tasks one claim takes at most.
func (r *Runner) ClaimSize(h *handler.Handler) int { return r.groups.of(h) }

// Run claims and runs the handler of a Tx or Batch type. claimed is called with the claimed tasks,
// unless the claim failed. left are those of a group's tasks that are as before. The error is the
// database's, which is no attempt and a reason to slow down, or ErrNoSlot.
func (r *Runner) Run(ctx context.Context, h *handler.Handler, c plan.Claim,
	claimed func([]*store.Row)) (left []*store.Row, err error) {
	a, err := r.claim(ctx, h, Next(c.Start, c.Limit), claimed)
	if a == nil {
		return nil, err
	}
	if err != nil {
		return a.left, err
	}
	for _, id := range a.alone {
		if r.p.stopping() {
			break
		}
		_, err := r.claim(ctx, h, One(id), func([]*store.Row) {})
		if errors.Is(err, ErrNoSlot) {
			break // another call has it; the next claim of the rest finds the runs in the journal
		}
		if err != nil {
			return a.left, err
		}
	}
	return a.left, nil
}

// claim claims and runs the handler. The attempt is nil if nothing was claimed.
func (r *Runner) claim(ctx context.Context, h *handler.Handler, c Claim, claimed func([]*store.Row)) (*attempt, error) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, pg.StatementTimeout) // else it waits for the pool for ever
	tx, err := apptx.Begin(bounded, r.p.Store)
	cancel()
	if err != nil {
		return nil, err
	}
	if h.MaxRunning > 0 {
		slots, err := r.p.Store.LockSlots(ctx, h.Type, tx.SQL(), 1)
		if err != nil {
			tx.Abort()
			return nil, err
		}
		if len(slots) == 0 {
			_ = tx.RollBack()
			return nil, ErrNoSlot
		}
	}
	u, err := Take(r.p.Store, r.p.Board, tx, h, c)
	if err != nil {
		tx.Abort()
		return nil, err
	}
	had := time.Now()
	if len(u.Rows) == 0 {
		if err := tx.RollBack(); err != nil {
			return nil, err
		}
		claimed(nil)
		r.p.Report.Claimed(h, 0, began, had)
		return nil, nil
	}
	open := r.open.add(r.p.Handling, u.Rows)
	defer r.open.remove(open)
	claimed(u.Rows)
	r.p.Report.Claimed(h, len(u.Rows), began, had)
	a := &attempt{p: r.p, groups: r.groups, unit: u, open: open,
		claim: handler.Claim{Began: began, Ended: had, Log: r.p.Report.Log},
		watch: r.p.Report.Watch(h, u.Rows, had)}
	err = a.run(ctx)
	u.Ended()
	a.looks.Wait()
	a.watch.Tell()
	r.p.Report.RunEnded(u.Rows...)
	return a, err
}

// run journals the claim and runs the handler, unless earlier runs decide otherwise.
func (a *attempt) run(ctx context.Context) error {
	u, journal := a.unit, a.p.Journal
	u.runs = store.NewRuns(u.Rows, a.unit.Tx.XID())
	recorded := journal.Record(u.runs)
	defer journal.Close(u.runs)
	err := u.Allow(a.timeout())
	found, journalErr := recorded()
	if err = errors.Join(err, journalErr); err != nil {
		u.Tx.Abort()
		if !pgerr.Refusal(journalErr) { // else nothing was written
			journal.ForgetRuns(u.runs)
		}
		return err
	}
	if entries := decide.Before(u.h, u.Rows, found); entries != nil {
		if done, err := a.judge(entries, found); done {
			return err
		}
	}
	if len(found) > 0 {
		// A suspect is journalled when it is about to run. Until then another
		// suspect's crash must not count against it.
		defer a.leaveSuspects()
		u.runs.Suspect = true
		if _, err := journal.Record(u.runs)(); err != nil {
			journal.ForgetRuns(u.runs)()
			u.Tx.Abort()
			return err
		}
		a.watch.Lost(u.Rows...)
	}
	if len(u.Rows) > 1 && u.h.GroupSize > 1 {
		return newGroup(a).run(ctx)
	}
	return a.call(ctx)
}

// judge acts on what earlier runs left, and reports whether the claim has ended; if not, the claim is one or
// more suspects, which may run until a.leaveSuspects is called.
func (a *attempt) judge(entries []decide.Entry, found map[int64][]store.Earlier) (done bool, err error) {
	if len(entries) > 1 {
		return a.judgeBatch(entries, found)
	}
	r, entry := a.unit.Rows[0], entries[0]
	switch {
	case entry.Buried:
		a.watch.Lost(r)
		return true, a.close(entry.Verdict)
	case entry.Earlier == store.Fresh:
		return false, nil
	case entry.Earlier == store.Suspect:
		if a.leaveSuspects, entry.Wait = a.p.Suspects.Run(a.p.Report.Log, r); a.leaveSuspects != nil {
			return false, nil
		}
	}
	defer a.p.Report.Due.Postpone(entry.Wait) // from when it is written
	v := decide.Verdict{Outcome: decide.Released,
		Change: store.Change{Attempt: r.Attempt, Wait: entry.Wait, Untried: true}}
	for _, e := range found[r.ID] {
		v.Change.Keep = append(v.Change.Keep, e.Token)
	}
	return true, a.close(v)
}

// judgeBatch lets a batch run of which no task has lost more than one run. Else it gives the batch
// back, and the tasks with more of a history run one by one.
func (a *attempt) judgeBatch(entries []decide.Entry, found map[int64][]store.Earlier) (done bool, err error) {
	var solo, history []int64
	most := a.unit.Rows[0]
	for i, r := range a.unit.Rows {
		switch e := entries[i]; {
		case e.Earlier == store.Fresh && !e.Buried:
			continue
		case e.Earlier != store.Suspect, e.Buried, r.Isolation > store.LostOnce,
			slices.ContainsFunc(found[r.ID], func(e store.Earlier) bool { return e.LostConn }):
			solo = append(solo, r.ID)
		}
		history = append(history, r.ID)
		if r.Isolation > most.Isolation {
			most = r
		}
	}
	if len(solo) == 0 {
		if a.leaveSuspects, _ = a.p.Suspects.Run(a.p.Report.Log, most); a.leaveSuspects != nil {
			return false, nil
		}
		solo = history
	}
	a.noted(a.p.Journal.ForgetRuns)()
	_ = a.unit.Tx.RollBack()
	a.watch.SetAll(decide.Released)
	a.alone = solo
	return true, nil
}

// close writes what becomes of a task whose handler is not called, and commits. After an error
// nothing is committed, or, if it is the commit's, perhaps.
func (a *attempt) close(v decide.Verdict) error {
	verdicts := []decide.Verdict{v}
	end := a.unit.Tx.End(nil, func(error) apptx.Plan { return a.unit.Reject(verdicts) })
	if end.How == apptx.Committed {
		a.recorded(verdicts)
		return nil
	}
	a.p.Journal.ForgetRuns(a.unit.runs)
	return end.Err
}
