package relay

import (
	"context"
	"database/sql/driver"
	"errors"
	"math"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// claim is a way to take tasks of h's type, with one statement or, while they found less than they might, a few.
type claim interface {
	// part is the i-th statement, after found tasks. more: another one may follow it.
	part(h *handlers.Handler, i, found int) (p claimPart, more bool)
}

// claimPart is a statement that takes up to limit tasks: it returns rowColumns and, with one of them, the transaction's id.
type claimPart struct {
	query string
	args  []any
	limit int // 0: there is nothing more to do
}

// One task, by a function that keeps its plan.
const claimTaskSQL = `/* outbox: claim a task */
SELECT * FROM outbox.claim_task($1, $2, $3, $4, $5) WHERE task_id IS NOT NULL`

// The CTE is fenced by its row locks and by MATERIALIZED: as a bare sub-select in USING the planner may run it
// once for each row, and take more than its LIMIT. Its ids go through an array, as a join with many of them tempts
// the planner to read the whole table.
const deleteClaim = `
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + rowColumns + `, CASE WHEN t.task_id = (SELECT task_id FROM c LIMIT 1) THEN pg_current_xact_id()::text END`

const claimSQL = `/* outbox: claim */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + deleteClaim

// From a place on: a floor, or a pivot, where the bound keeps less urgent tasks out while urgent ones lie below it.
const claimFromSQL = `/* outbox: claim from a place */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
     AND (priority, attempt, task_id) >= ($3::smallint, $4::smallint, $5::bigint) AND priority <= $6::smallint
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + deleteClaim

// By id: ready is said by what it is not, as no index but the primary key fits then. After statistics from a
// drained queue the planner would take the lane's and read all of it.
const claimOneSQL = `/* outbox: claim one task */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = $2 AND task_type = $1 AND state NOT IN ('scheduled', 'leased', 'waiting')
     FOR UPDATE SKIP LOCKED)` + deleteClaim

// pivot is a place in a lane, there for a task or not.
type pivot struct {
	priority, attempt int
	taskID            int64
}

var laneStart = pivot{math.MinInt16, 0, math.MinInt64}

// claimNext takes up to limit tasks from the floor of the lane on, nil for its start; or from the pivot on if there is one, and then
// from the floor.
type claimNext struct {
	limit        int
	floor, pivot *pivot
	started      int // of the lane's floors
}

func (c claimNext) part(h *handlers.Handler, i, found int) (p claimPart, more bool) {
	rest, most := c.limit-found, math.MaxInt16
	from, more := c.floor, c.pivot != nil && i == 0
	if more {
		from, most = c.pivot, c.pivot.priority
	}
	if c.limit == 1 {
		if from == nil {
			from = &laneStart
		}
		return claimPart{claimTaskSQL, []any{h.Type, from.priority, from.attempt, from.taskID, most}, rest}, more
	}
	if from == nil {
		return claimPart{claimSQL, []any{h.Type, rest}, rest}, false
	}
	return claimPart{claimFromSQL, []any{h.Type, rest, from.priority, from.attempt, from.taskID, most}, rest}, more
}

// claimOne takes one task by its id, if it is ready and no other has it.
type claimOne struct{ taskID int64 }

func (c claimOne) part(h *handlers.Handler, _, _ int) (p claimPart, more bool) {
	return claimPart{claimOneSQL, []any{h.Type, c.taskID}, 1}, false
}

// claimSettings are those of the claim's transaction. They are made before it locks a row, so a relay that freezes at any moment
// lets go.
func claimSettings(h *handlers.Handler) string {
	return "SET LOCAL idle_in_transaction_session_timeout = " + ms(idleFor(h.Timeout)) + "; SET LOCAL lock_timeout = " + ms(bookkeeping)
}

// take claims on the attempt's connection, and sets its savepoint if it finds tasks.
func (a *attempt) take(c claim) error {
	return a.exclusively(func(ctx context.Context, conn exclusive) error {
		before, after := claimSettings(a.h), ""
		var block []row // rows are made in blocks, which costs a batch less
		for i, more := 0, true; more; i++ {
			var p claimPart
			if p, more = c.part(a.h, i, len(a.rows)); p.limit == 0 {
				break
			}
			if !more {
				after = a.savepointStatements(a.h.Timeout)
			}
			found := len(a.rows)
			err := conn.together(ctx, before, a.r.sql(p.query), p.args, after, func(values []driver.Value) error {
				if len(block) == 0 {
					block = make([]row, min(p.limit, 64))
				}
				r := &block[0]
				block = block[1:]
				r.taskType, r.max = a.h.Type, a.h.MaxAttempts
				a.rows = append(a.rows, r)
				if xid := values[len(values)-1]; xid != nil {
					a.xid = text(xid)
				}
				return r.fromDriver(values)
			})
			if err = errors.Join(err, tooMany(len(a.rows)-found, p.limit)); err != nil {
				return err
			}
			before = ""
		}
		inOrder(a.rows)
		if len(a.rows) == 0 || after != "" {
			return nil
		}
		_, err := conn.ExecContext(ctx, a.savepointStatements(a.h.Timeout))
		return err
	})
}

func (a *attempt) savepointStatements(timeout time.Duration) string {
	return "SAVEPOINT " + a.savepoint + "; SET LOCAL statement_timeout = " + ms(timeout)
}

// idleFor is how long the transaction of a claim may stand idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + abandonAfter + bookkeeping
}
