package run

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// transition is how a lease ends. Its SQL names the token, so only the holder of the lease can make
// it. When the lease was lost, its outcome is another one than the verdict's.
type transition struct {
	verdict
	row    *store.Row
	token  string
	keep   time.Duration // done: in the history
	lostBy string        // stays on the row: the relay that died while it ran this task
	held   bool          // the lease was still the relay's: the transition was made
}

// A token is only on leased rows (check_task). The statements that have a task's id do not name the
// state as well: after statistics without leased rows the planner would read the index of all of
// them, dead entries included.
const ReturnLeaseSQL = `/* outbox: end a lease */
UPDATE outbox.task SET state = $3, attempt = $4, last_error = COALESCE($5, last_error), relay_id = $6::uuid,
       run_at = CASE WHEN $3 = 'ready' THEN run_at ELSE clock_timestamp() + $7::bigint * interval '1 microsecond' END,
       lease_token = NULL, leased_until = NULL, ordering_key = $8,
       timeline = CASE WHEN $9::jsonb IS NULL THEN timeline ELSE outbox.add_events(timeline, $9::jsonb) END
 WHERE task_id = $1 AND lease_token = $2::uuid`

const LeaseAgainSQL = `/* outbox: run a leased task again */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $3::bigint * interval '1 microsecond',
       iterations = LEAST(iterations, 2147483646) + 1, attempt = 0, last_error = NULL, timeline = NULL, payload = COALESCE($4::jsonb, payload),
       relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE task_id = $1 AND lease_token = $2::uuid`

const DeadLeaseSQL = `/* outbox: end a lease in the dead letters */
WITH gone AS (
  DELETE FROM outbox.task WHERE task_id = $1 AND lease_token = $2::uuid RETURNING *)
INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason,
       task_type, payload, headers, last_error, ` + store.OptionalColumns + `, task_max_attempts, timeline)
SELECT task_id, run_at, created_at, attempted_at, clock_timestamp(), priority, $3::smallint, $4::smallint, $5,
       task_type, payload, headers, $6, ` + store.OptionalColumns + `, max_attempts, outbox.add_events(timeline, $7::jsonb) FROM gone`

// resultSettings are for what finish_tasks does not do, which has them as well: who holds a row for
// longer must not hold up the others of its group.
const resultSettings = "SET LOCAL lock_timeout = '2s'"

// alike reports whether all are done and nothing else, each task once: one statement is enough.
// They are sorted.
func alike(done []*transition) bool {
	for i, t := range done {
		if t.outcome == Canceled || i > 0 && done[i-1].row.ID == t.row.ID {
			return false
		}
	}
	return true
}

// writeTransitions makes transitions of all kinds, sorted by id, and marks those whose leases are
// held.
func writeTransitions(ctx context.Context, s *store.Store, tx *sql.Tx, done, other []*transition) error {
	var failed, canceled []string // types
	for _, t := range other {
		result, err := change(ctx, s, tx, t)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if t.held = n == 1; t.held && t.change.Failed {
			failed = append(failed, t.row.TaskType)
		}
	}
	if err := remove(ctx, s, tx, done); err != nil {
		return err
	}
	for _, t := range done {
		if t.outcome == Canceled && t.held {
			canceled = append(canceled, t.row.TaskType)
		}
	}
	return errors.Join(s.Count(ctx, tx, "failed", failed), s.Count(ctx, tx, "canceled", canceled))
}

// remove deletes tasks that are done, sorted by id. A task is in a statement once: of one that this
// relay has lost and claimed again two runs may end together.
func remove(ctx context.Context, s *store.Store, tx *sql.Tx, group []*transition) error {
	for len(group) > 0 {
		var now, later []*transition
		for i, t := range group {
			if i > 0 && group[i-1].row.ID == t.row.ID {
				later = append(later, t)
			} else {
				now = append(now, t)
			}
		}
		query, args, said := finishing(now)
		if err := pg.QueryTx(ctx, tx, s.SQL(query), args, said.add); err != nil {
			return err
		}
		said.mark(now)
		group = later
	}
	return nil
}

// split sorts a group by task: rows are locked in one order.
func split(group []*transition) (done, other []*transition) {
	for _, t := range group {
		if t.done {
			done = append(done, t)
		} else {
			other = append(other, t)
		}
	}
	for _, list := range [][]*transition{done, other} {
		slices.SortStableFunc(list, func(a, b *transition) int { return cmp.Compare(a.row.ID, b.row.ID) })
	}
	return done, other
}

// change makes the transition of a task that is not done.
func change(ctx context.Context, s *store.Store, tx *sql.Tx, t *transition) (sql.Result, error) {
	c := t.change
	if c.Reason != "" {
		return tx.ExecContext(ctx, s.SQL(DeadLeaseSQL), t.row.ID, t.token, c.Attempt, t.row.Max, c.Reason, pgerr.Text(c.Err), s.Noted(c))
	}
	if c.Again {
		payload := sql.NullString{String: c.Payload, Valid: c.Payload != ""} // NULL keeps the task's own
		return tx.ExecContext(ctx, s.SQL(LeaseAgainSQL), t.row.ID, t.token, c.Wait.Microseconds(), payload)
	}
	state := "scheduled"
	if t.back {
		state = "ready"
	}
	var lastError sql.NullString
	if c.Err != nil {
		lastError = sql.NullString{String: pgerr.Text(c.Err), Valid: true}
	}
	return tx.ExecContext(ctx, s.SQL(ReturnLeaseSQL), t.row.ID, t.token, state, c.Attempt, lastError, sql.NullString{String: t.lostBy, Valid: t.lostBy != ""}, c.Wait.Microseconds(), t.row.KeyAfter(c), s.Noted(c))
}
