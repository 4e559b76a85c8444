package relay

import (
	"math"
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

// claimPart is a statement that takes up to limit tasks: it returns store.RowColumns and, with one of
// them, the transaction's id. Or it returns each as text, as outbox.claim_tasks does.
type claimPart struct {
	query   string
	args    []any
	limit   int // 0: there is nothing more to do
	text    bool
	settled bool // it makes the transaction's settings, which the claim sends before it else
}

// One task, by a function that keeps its plan and makes the transaction's settings.
const takeTaskSQL = `/* outbox: claim a task */
SELECT outbox.claim_task($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// Several, in the same way: from a place on, which is the start of the lane, a watermark, or a
// pivot, where the bound keeps less urgent tasks out while urgent ones lie below it.
const claimSQL = `/* outbox: claim */
SELECT outbox.claim_tasks($1, $2, $3, $4, $5, $6)`

// The CTE is fenced by its row locks and by MATERIALIZED: as a bare sub-select in USING the planner
// may run it once for each row, and take more than its LIMIT. By id: ready is said by what it is
// not, as no index but the primary key fits then. After statistics from a drained queue the planner
// would take the lane's and read all of it.
const claimOneSQL = `/* outbox: claim one task */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = $2 AND task_type = $1 AND state NOT IN ('scheduled', 'leased', 'waiting')
     FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + store.RowColumns + `, pg_current_xact_id()::text`

// claimNext takes up to limit tasks from the watermark of the lane on, nil for its start; or from
// the pivot on if there is one, and then from the watermark.
type claimNext struct {
	limit            int
	watermark, pivot *plan.Position
	idSpan           int64 // among so many ids from the watermark on a task is likely; 0: nothing is known
	started          int   // of the lane's watermarks
}

// pivotIDSpan is what idSpan is for a pivot, of leased tasks as well.
const pivotIDSpan = 64

func (c claimNext) part(h *handler.Handler, i, found int) (p claimPart, more bool) {
	rest, most, idSpan := c.limit-found, math.MaxInt16, c.idSpan
	from, more := c.watermark, c.pivot != nil && i == 0
	if more {
		from, most, idSpan = c.pivot, c.pivot.Priority, pivotIDSpan
	}
	if from == nil {
		from, idSpan = &plan.LaneStart, 0
	}
	args := []any{h.Type, from.Priority, from.Attempt, from.TaskID, most}
	if c.limit == 1 {
		args = append(args, idSpan, pg.Millis(idleFor(h.Timeout)), pg.Millis(pg.Bookkeeping), pg.Millis(h.Timeout))
		return claimPart{query: takeTaskSQL, args: args, limit: rest, text: true, settled: true}, more
	}
	return claimPart{query: claimSQL, args: append(args, rest), limit: rest, text: true}, more
}

// claimOne takes one task by its id, if it is ready and no other has it.
type claimOne struct{ taskID int64 }

func (c claimOne) part(h *handler.Handler, _, _ int) (p claimPart, more bool) {
	return claimPart{query: claimOneSQL, args: []any{h.Type, c.taskID}, limit: 1}, false
}

// claimSettings are those of the claim's transaction. They are made before it locks a row, so a
// relay that freezes at any moment lets go.
func claimSettings(h *handler.Handler) string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + pg.Millis(idleFor(h.Timeout)) + "; SET LOCAL lock_timeout = " + pg.Millis(pg.Bookkeeping)
}

// idleFor is how long the transaction of a claim may stand idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + abandonAfter + pg.Bookkeeping
}

// claimedRuns are those of a claim's rows, which are in the order of the lane. A lease has counted
// the attempt.
func claimedRuns(rows []*store.Row, leased bool) (out []plan.ClaimedRun) {
	for _, r := range rows {
		p := plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID}
		if leased && !r.LostBy.Valid {
			p.Attempt--
		}
		if n := len(out); n == 0 || out[n-1].Last.Class() != p.Class() {
			out = append(out, plan.ClaimedRun{})
		}
		run := &out[len(out)-1]
		run.Last, run.Tasks = p, run.Tasks+1
	}
	return out
}
