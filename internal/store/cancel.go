package store

import (
	"context"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// Requests to cancel, of any relay's tasks; those of this relay's tasks; and the leases of this
// relay that another relay or an operator took.
const HearSQL = `/* outbox: hear what became of running tasks */
(SELECT 'asked', task_id, '' FROM outbox.cancel c
  WHERE (SELECT t.state FROM outbox.task t WHERE t.task_id = c.task_id) IS DISTINCT FROM 'leased' ORDER BY cancel_id LIMIT 1000)
UNION ALL
SELECT 'cancel', task_id, '' FROM outbox.cancel WHERE task_id = ANY ($1::bigint[])
UNION ALL
SELECT 'lost', l.task_id, l.token::text FROM unnest($2::bigint[], $3::uuid[]) AS l (task_id, token)
 WHERE (SELECT t.lease_token FROM outbox.task t WHERE t.task_id = l.task_id) IS DISTINCT FROM l.token`

// Lease is a task and the token of its lease, or of its run in the journal.
type Lease struct {
	TaskID int64
	Token  string
}

// Heard is what became of running tasks elsewhere.
type Heard struct {
	Asked    []int64 // tasks that are to be canceled and have no lease, of any relay
	Canceled map[int64]bool
	Lost     map[Lease]bool
}

// Hear reads what became of tasks that run in this relay.
func (s *Store) Hear(ctx context.Context, conn pg.Querier, running []int64, leases []Lease) (Heard, error) {
	h := Heard{Canceled: map[int64]bool{}, Lost: map[Lease]bool{}}
	leasedIDs, tokens := splitLeases(leases)
	rows, err := conn.QueryContext(ctx, s.SQL(HearSQL), pq.Array(append(running, leasedIDs...)), pq.Array(leasedIDs), pq.Array(tokens))
	if err != nil {
		return h, err
	}
	defer rows.Close()
	for rows.Next() {
		var kind string
		var l Lease
		if err := rows.Scan(&kind, &l.TaskID, &l.Token); err != nil {
			return h, err
		}
		switch kind {
		case "asked":
			h.Asked = append(h.Asked, l.TaskID)
		case "cancel":
			h.Canceled[l.TaskID] = true
		case "lost":
			h.Lost[l] = true
		}
	}
	return h, rows.Err()
}

// Tasks that were asked to end and wait again, and requests whose task is gone. By arrays, as a
// join would tempt the planner to read the whole table of tasks.
const RemoveCanceledSQL = `/* outbox: remove canceled tasks */
WITH waiting AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = ANY ($1::bigint[]) AND state <> 'leased' FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) RETURNING task_type),
counted AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT count(*), task_type, 'canceled' FROM gone GROUP BY task_type),
runs AS (DELETE FROM outbox.running WHERE task_id = ANY (ARRAY(SELECT task_id FROM waiting)) AND task_ids IS NULL)
DELETE FROM outbox.cancel c WHERE c.task_id = ANY ($1::bigint[])
   AND (c.task_id = ANY (ARRAY(SELECT task_id FROM waiting))
     OR (SELECT t.task_id FROM outbox.task t WHERE t.task_id = c.task_id) IS NULL)
RETURNING ` + pg.CommitAsync

// RemoveCanceled removes canceled tasks that are not locked, and returns the number of requests
// that it has answered.
func (s *Store) RemoveCanceled(ctx context.Context, on Execer, taskIDs []int64) (answered int, err error) {
	result, err := on.ExecContext(ctx, s.SQL(RemoveCanceledSQL), pq.Array(taskIDs))
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

const forgetCancelSQL = `/* outbox: forget a request to cancel */
DELETE FROM outbox.cancel WHERE task_id = $1`

// EndCanceled counts a canceled task whose removal is in the same transaction, and deletes the
// request and its runs in the journal.
func (s *Store) EndCanceled(ctx context.Context, on Execer, r *Row) error {
	if _, err := on.ExecContext(ctx, s.ForgetTasks([]*Row{r})); err != nil {
		return err
	}
	if _, err := on.ExecContext(ctx, s.SQL(forgetCancelSQL), r.ID); err != nil {
		return err
	}
	return s.Count(ctx, on, "canceled", []string{r.TaskType})
}
