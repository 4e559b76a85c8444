package run

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// claimPlan is a way to take tasks of h's type, with one statement or, while they found less than
// they might, a few.
type claimPlan interface {
	// part is the i-th statement, after found tasks. more: another one may follow it.
	part(h *handler.Handler, i, found int) (p claimPart, more bool)
}

// claimPart is a statement that takes up to limit tasks, and returns a store.RowText of each.
type claimPart struct {
	query         string
	args          []any
	limit         int  // 0: there is nothing more to do
	makesSettings bool // it makes the transaction's settings, which the claim sends before it else
	ofGroup       bool // it only locks all tasks but the first, and returns the place of each before it
}

// One task, by a function that keeps its plan and makes the transaction's settings.
const TakeTaskSQL = `/* outbox: claim a task */
SELECT outbox.claim_task($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// Several, in the same way: from a place on, which is the start of the lane, a watermark, or a
// pivot, where the bound keeps less urgent tasks out while urgent ones lie below it; or those that
// have been due longest.
const ClaimSQL = `/* outbox: claim */
SELECT outbox.claim_tasks($1, $2, $3, $4, $5, $6, $7)`

// Several for a group, in the same way: one after the other is claimed as its turn comes.
const ClaimGroupSQL = `/* outbox: claim a group */
SELECT outbox.claim_group($1, $2, $3, $4, $5, $6, $7, $8)`

// The CTE is fenced by its row locks and by MATERIALIZED: as a bare sub-select in USING the planner
// may run it once for each row, and take more than its LIMIT. By id: ready is said by what it is
// not, as no index but the primary key fits then. After statistics from a drained queue the planner
// would take the lane's and read all of it.
const ClaimOneSQL = `/* outbox: claim one task */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = $2 AND task_type = $1 AND state NOT IN ('scheduled', 'leased', 'waiting')
     AND NOT EXISTS (SELECT FROM outbox.task_type WHERE task_type = $1 AND paused)
     FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + store.RowText

// ClaimNext takes up to limit tasks from the watermark of the lane on, nil for its start; or from
// the pivot on if there is one, and then from the watermark; or by due time from a place on.
type ClaimNext struct {
	Limit            int
	Watermark, Pivot *plan.Position
	Due              *plan.Due // nil: in the lane's order
}

// idSpan is among how many ids from a watermark or a pivot on a task is likely.
const idSpan = 100

func (c ClaimNext) part(h *handler.Handler, i, found int) (p claimPart, more bool) {
	rest, most, span := c.Limit-found, math.MaxInt16, idSpan
	from, more := c.Watermark, c.Pivot != nil && i == 0
	if more {
		from, most = c.Pivot, c.Pivot.Priority
	}
	if from == nil {
		from, span = &plan.LaneStart, 0
	}
	id, due := from.TaskID, sql.NullInt64{}
	if c.Due != nil {
		id, due = c.Due.TaskID, sql.NullInt64{Int64: c.Due.RunAt, Valid: true}
		more = false
	}
	args := []any{h.Type, from.Priority, from.Attempt, id, most}
	switch {
	case c.Limit == 1 && c.Due == nil:
		args = append(args, span, pg.Millis(idleFor(h.Timeout)), pg.Millis(pg.Bookkeeping), pg.Millis(h.Timeout))
		return claimPart{query: TakeTaskSQL, args: args, limit: rest, makesSettings: true}, more
	case h.GroupSize > 1 && c.Limit > 1:
		return claimPart{query: ClaimGroupSQL, args: append(args, rest, found == 0, due), limit: rest, ofGroup: true}, more
	}
	return claimPart{query: ClaimSQL, args: append(args, rest, due), limit: rest}, more
}

// claimOne takes one task by its id, if it is ready and no other has it.
type claimOne struct{ taskID int64 }

func (c claimOne) part(h *handler.Handler, _, _ int) (p claimPart, more bool) {
	return claimPart{query: ClaimOneSQL, args: []any{h.Type, c.taskID}, limit: 1}, false
}

// claimSettings are those of the claim's transaction. They are made before it locks a row, so a
// relay that freezes at any moment lets go.
func claimSettings(h *handler.Handler) string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + pg.Millis(idleFor(h.Timeout)) + "; SET LOCAL lock_timeout = " + pg.Millis(pg.Bookkeeping)
}

// idleFor is how long the transaction of a claim may stand idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + AbandonAfter + pg.Bookkeeping
}

// ClaimedRuns are those of a claim's rows.
func ClaimedRuns(rows []*store.Row) (out []plan.ClaimedRun) {
	if !slices.IsSortedFunc(rows, (*store.Row).Compare) { // a group in random order
		rows = slices.SortedFunc(slices.Values(rows), (*store.Row).Compare)
	}
	for _, r := range rows {
		out = appendRun(out, r, r.Attempt)
	}
	return out
}

// LastDue is the one of a claim's rows that became due last.
func LastDue(rows []*store.Row) (last plan.Due) {
	for i, r := range rows {
		if at := (plan.Due{RunAt: r.RunAt, TaskID: r.ID}); i == 0 || at.Compare(last) > 0 {
			last = at
		}
	}
	return last
}

// LastDueLease is LastDue of leased tasks.
func LastDueLease(runs []*LeasedRun) plan.Due { return LastDue(rowsIn(runs)) }

// ClaimedLeases are ClaimedRuns of leased tasks.
func ClaimedLeases(runs []*LeasedRun) (out []plan.ClaimedRun) {
	for _, x := range runs {
		out = appendRun(out, &x.row, x.row.Unclaimed())
	}
	return out
}

func appendRun(runs []plan.ClaimedRun, r *store.Row, attempt int) []plan.ClaimedRun {
	p := plan.Position{Priority: r.Priority, Attempt: attempt, TaskID: r.ID}
	if n := len(runs); n == 0 || runs[n-1].Last.Class() != p.Class() {
		runs = append(runs, plan.ClaimedRun{})
	}
	last := &runs[len(runs)-1]
	last.Last, last.Tasks = p, last.Tasks+1
	return runs
}

// unit is the work on one claim of a Tx or Batch handler, in a transaction that its owner begins
// and ends: it claims, and it writes what becomes of the tasks.
//
//	claim; SAVEPOINT; handler; constraints, session, RELEASE, probe; results
//	claim; SAVEPOINT; handler; ROLLBACK TO, RELEASE, probe; results
type unit struct {
	guardedTx
	h    *handler.Handler
	rows []*store.Row
	runs *store.Runs // in the journal; nil: there is none

	uncounted int // tasks of a group that no trigger has counted as claimed
}

// take claims, and sets the savepoint if it finds tasks.
func (u *unit) take(c claimPlan) error {
	return u.exclusively(func(ctx context.Context, conn pg.Exclusive) error {
		untimed := u.untimed()
		before, after, begun := "", "", 0
		for i, more := 0, true; more; i++ {
			var p claimPart
			if p, more = c.part(u.h, i, len(u.rows)); p.limit == 0 {
				break
			}
			switch {
			case p.makesSettings:
				after = untimed + "SAVEPOINT " + savepoint
			case !more:
				after = u.savepointStatements()
			}
			if i == 0 && !p.makesSettings {
				before = untimed + claimSettings(u.h)
			}
			found := len(u.rows)
			err := conn.Together(ctx, before, u.SQL(p.query), p.args, after, func(values []driver.Value) (err error) {
				if values[0] == nil {
					return nil
				}
				r, text := &store.Row{TaskType: u.h.Type, Max: u.h.MaxAttempts}, pg.Text(values[0])
				if p.ofGroup {
					r.Place, text, _ = strings.Cut(text, "\x1f")
					begun = 1
				}
				u.rows = append(u.rows, r)
				u.xid, err = r.FromText(text)
				return err
			})
			if err = errors.Join(err, store.TooMany(len(u.rows)-found, p.limit)); err != nil {
				return err
			}
			before = ""
		}
		slices.SortFunc(u.rows[begun:], (*store.Row).Compare) // RETURNING does not keep the lane's order
		if len(u.rows) > 0 && after == "" {
			if _, err := conn.ExecContext(ctx, u.savepointStatements()); err != nil {
				return err
			}
		}
		return u.noteTime(ctx, conn)
	})
}

func (u *unit) savepointStatements() string {
	return "SAVEPOINT " + savepoint + "; SET LOCAL statement_timeout = " + pg.Millis(u.h.Timeout)
}

// allow makes the transaction wait for a handler with another timeout than the registered one,
// which the claim has set it for. By a query: each value would be another SET for
// pg_stat_statements.
func (u *unit) allow(timeout time.Duration) error {
	if timeout == u.h.Timeout {
		return nil
	}
	return u.exec("/* outbox: allow a task's own timeout */ SELECT set_config('idle_in_transaction_session_timeout', '" + pg.Millis(idleFor(timeout)) + "', true), " +
		"set_config('statement_timeout', '" + pg.Millis(timeout) + "', true)")
}

// tasks are what the handler gets.
func (u *unit) tasks() []*store.Task {
	block := make([]store.Task, len(u.rows))
	tasks := make([]*store.Task, len(u.rows))
	for i, r := range u.rows {
		tasks[i] = &block[i]
		r.Fill(tasks[i], u.Identity, r.Begun())
	}
	return tasks
}

// Of one task; of none (0) where their rows in the journal are deleted before.
const endRunSQL = `/* outbox: end a claim */
SELECT outbox.end_run($1, $2)`

// keep keeps what the handler did, and writes what becomes of its tasks: without verdicts they are
// done. Not released is an error of the handler's work or of its transaction, see isBroken; released
// is one of the relay's own statements.
func (u *unit) keep(verdicts []verdict) (released bool, err error) {
	var done, history []*store.Row
	var canceledTypes []string
	if verdicts == nil {
		done, history = u.rows, u.rows
	}
	for i, v := range verdicts {
		switch r := u.rows[i]; {
		case v.outcome == Canceled:
			done, canceledTypes = append(done, r), append(canceledTypes, u.h.Type)
		case v.done:
			r.Discarded = v.change.Err
			done, history = append(done, r), append(history, r)
		}
	}
	after, one := "", int64(0)
	switch {
	case u.runs == nil:
		after = "; " + u.ForgetTasks(done)
	case len(u.runs.IDs) > 1:
		after = "; " + u.runs.Forget(u.Store, done)
	case len(done) == 1:
		one = done[0].ID
	}
	if u.uncounted > 0 {
		after += "; " + u.CountClaimed(u.h.Type, u.uncounted)
	}
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		var err error
		if released, err = u.release(ctx, c, u.h.Keep, history, after, u.SQL(endRunSQL), one); err != nil {
			return err
		}
		if err := writeVerdicts(ctx, u.Store, c, u.rows, verdicts); err != nil {
			return err
		}
		return u.Count(ctx, c, "canceled", canceledTypes)
	})
	return released, err
}

// reject undoes what the handler did, and writes what becomes of its tasks. Not undone is an error
// of the transaction.
func (u *unit) reject(verdicts []verdict) (undone bool, err error) {
	err = u.exclusively(func(ctx context.Context, c pg.Exclusive) error {
		if err := u.undo(ctx, c); err != nil {
			return err
		}
		undone = true
		if u.runs != nil && len(u.runs.IDs) > 1 { // else each task's rows go with what is written of it
			if _, err := c.ExecContext(ctx, u.runs.Forget(u.Store, nil)); err != nil {
				return err
			}
		}
		if err := writeVerdicts(ctx, u.Store, c, u.rows, verdicts); err != nil || u.conn == nil {
			return err
		}
		_, err := c.ExecContext(ctx, "SET TRANSACTION READ ONLY") // for a goroutine that the handler left behind
		return err
	})
	return undone, err
}
