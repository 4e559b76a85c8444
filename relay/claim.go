package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// claim is a way to take tasks of h's type inside tx.
type claim interface {
	take(ctx context.Context, r *Relay, h *handlers.Handler, tx *sql.Tx) (rows []*row, xid string, err error)
}

// The CTE is fenced by its row locks and by MATERIALIZED: as a bare sub-select in USING the planner may run it
// once for each row, and take more than its LIMIT. Its ids go through an array, as a join with many of them tempts
// the planner to read the whole table. The settings take effect with the first row that is locked,
// so a relay that freezes at any moment lets go.
const deleteClaim = `
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING ` + rowColumns + `, pg_current_xact_id()::text,
       set_config('idle_in_transaction_session_timeout', $3, true), set_config('lock_timeout', $4, true)`

const claimSQL = `/* outbox: claim */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + deleteClaim

// From a pivot: the upper bound keeps less urgent tasks out while urgent ones lie below the pivot.
const claimFromSQL = `/* outbox: claim from a pivot */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
     AND (priority, attempt, task_id) >= ($5::smallint, $6::smallint, $7::bigint) AND priority <= $5::smallint
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)` + deleteClaim

// By id: ready is said by what it is not, as no index but the primary key fits then. After statistics from a
// drained queue the planner would take the lane's and read all of it.
const claimOneSQL = `/* outbox: claim one task */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = $2 AND task_type = $1 AND state NOT IN ('scheduled', 'leased', 'waiting')
     FOR UPDATE SKIP LOCKED)` + deleteClaim

// pivot is where a claim in random order starts: a place in a lane.
type pivot struct {
	priority, attempt int
	taskID            int64
}

// claimNext takes up to limit tasks from the head of the lane, or from the pivot on if there is one, and then
// from the head.
type claimNext struct {
	limit int
	pivot *pivot
}

func (c claimNext) take(ctx context.Context, r *Relay, h *handlers.Handler, tx *sql.Tx) (rows []*row, xid string, err error) {
	if p := c.pivot; p != nil {
		rows, xid, err = r.claimRows(ctx, h, tx, c.limit, claimFromSQL, h.Type, c.limit, p.priority, p.attempt, p.taskID)
		if err != nil || len(rows) == c.limit {
			return rows, xid, err
		}
	}
	rest := c.limit - len(rows)
	more, xid2, err := r.claimRows(ctx, h, tx, rest, claimSQL, h.Type, rest)
	if xid == "" {
		xid = xid2
	}
	return append(rows, more...), xid, err
}

// claimOne takes one task by its id, if it is ready and no other has it.
type claimOne struct{ taskID int64 }

func (c claimOne) take(ctx context.Context, r *Relay, h *handlers.Handler, tx *sql.Tx) ([]*row, string, error) {
	return r.claimRows(ctx, h, tx, 1, claimOneSQL, h.Type, c.taskID)
}

func (r *Relay) claimRows(ctx context.Context, h *handlers.Handler, tx *sql.Tx, limit int, query string, args ...any) ([]*row, string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	args = append(args[:2:2], append([]any{ms(idleFor(h.Timeout)), ms(bookkeeping)}, args[2:]...)...)
	found, err := tx.QueryContext(ctx, r.sql(query), args...)
	if err != nil {
		return nil, "", err
	}
	var xid, ignored string
	rows, err := scanRows(found, h, limit, func(*row) []any { return []any{&xid, &ignored, &ignored} })
	return rows, xid, err
}

// idleFor is how long the transaction of a claim may stand idle.
func idleFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + abandonAfter + bookkeeping
}
