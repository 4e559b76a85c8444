package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"

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

// EndCounted counts a task whose removal is in the same transaction, as canceled or expired, and deletes
// a request to cancel it and its runs in the journal.
func (s *Store) EndCounted(ctx context.Context, on Execer, r *Row, kind string) error {
	if _, err := on.ExecContext(ctx, s.ForgetTasks([]*Row{r})); err != nil {
		return err
	}
	if _, err := on.ExecContext(ctx, s.SQL(forgetCancelSQL), r.ID); err != nil {
		return err
	}
	return s.Count(ctx, on, kind, []string{r.TaskType})
}

// MostCompared is how many rows one comparison returns at most.
const MostCompared = 1000

// OtherLeasesSQL returns leased rows of a relay that are not among the leases that it holds.
const OtherLeasesSQL = `/* outbox: compare leases */
SELECT task_id, lease_token::text FROM outbox.task t WHERE state = 'leased' AND relay_id = $1::uuid
   AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::uuid[]) AS l (task_id, token)
                    WHERE l.task_id = t.task_id AND l.token = t.lease_token) LIMIT $4`

// OtherLeases reads leased rows of this relay beyond those that it holds.
func (s *Store) OtherLeases(ctx context.Context, conn pg.Querier, held []Lease) ([]Lease, error) {
	taskIDs, tokens := splitLeases(held)
	return readLeases(conn.QueryContext(ctx, s.SQL(OtherLeasesSQL), s.RelayID, pq.Array(taskIDs),
		pq.Array(tokens), MostCompared))
}

// The claim of a suspect has not counted its attempt where its last event is still the lost run.
const uncounted = `t.timeline -> -1 @> jsonb_build_object('event', 'lost', 'attempt', t.attempt)`

// FreeLeasesSQL makes tasks ready as if they had not been claimed. A locked row is skipped: its
// result may be on its way. The next comparison finds it again.
const FreeLeasesSQL = `/* outbox: free leases that nobody runs */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task
   WHERE task_id = ANY ($1::bigint[])
     AND lease_token = ($2::uuid[])[array_position($1::bigint[], task_id)]
     FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL,
       attempt = CASE WHEN ` + uncounted + ` THEN t.attempt ELSE GREATEST(t.attempt - 1, 0) END,
       relay_id = CASE WHEN ` + uncounted + ` THEN (t.timeline -> -1 ->> 'relay')::uuid END
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))
RETURNING t.task_id, ` + pg.CommitAsync

// FreeLeases ends leases whose runs have ended or never began, without an attempt, and returns
// their tasks.
func (s *Store) FreeLeases(ctx context.Context, conn pg.Querier, over []Lease) (freed []int64, err error) {
	taskIDs, tokens := splitLeases(over)
	rows, err := conn.QueryContext(ctx, s.SQL(FreeLeasesSQL), pq.Array(taskIDs), pq.Array(tokens))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id, new(string)); err != nil {
			return nil, err
		}
		freed = append(freed, id)
	}
	return freed, errors.Join(rows.Err(), rows.Close())
}

// OtherRunsSQL returns a relay's rows of the journal that are not of its open runs. A row that is
// marked has another meaning: the run lost its connection.
const OtherRunsSQL = `/* outbox: compare runs */
SELECT task_id, token::text FROM outbox.running
 WHERE relay_id = $1::uuid AND NOT lost_connection AND token <> ALL ($2::uuid[]) LIMIT $3`

// A row that is marked, or another's, since it was read stays.
const forgetOtherRunsSQL = `/* outbox: forget runs that are left over */
DELETE FROM outbox.running r
 USING unnest($1::bigint[], $2::uuid[]) AS m (task_id, token)
 WHERE r.task_id = m.task_id AND r.token = m.token AND r.relay_id = $3::uuid
   AND NOT r.lost_connection AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// ForgetLeftOver deletes this relay's rows of the journal whose runs have ended: the transaction
// that deleted the row is lost, or the row was committed after its run was forgotten. Another relay
// would take them for runs that may go on, and for lost ones when this relay has ended. The rows
// are read before the runs that are open now: a run that begins later has none among them.
func (j *Journal) ForgetLeftOver(ctx context.Context, conn pg.Querier) (forgotten int, err error) {
	rows, err := readLeases(conn.QueryContext(ctx, j.store.SQL(OtherRunsSQL), j.store.RelayID,
		pq.Array(j.known()), MostCompared))
	if err != nil {
		return 0, err
	}
	known := j.known()
	over := slices.DeleteFunc(rows, func(r Lease) bool { return slices.Contains(known, r.Token) })
	if len(over) == 0 {
		return 0, nil
	}
	taskIDs, tokens := splitLeases(over)
	_, err = conn.ExecContext(ctx, j.store.SQL(forgetOtherRunsSQL), pq.Array(taskIDs), pq.Array(tokens),
		j.store.RelayID)
	return len(over), err
}

// known are the tokens of runs that are open, or of which something is still to be written.
func (j *Journal) known() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []string{}
	for token := range j.open {
		out = append(out, token)
	}
	for _, list := range [][]*note{j.mark, j.forget} {
		for _, n := range list {
			out = append(out, n.runs.Token)
		}
	}
	return out
}

// splitLeases are the tasks and the tokens.
func splitLeases(leases []Lease) (taskIDs []int64, tokens []string) {
	taskIDs, tokens = make([]int64, len(leases)), make([]string, len(leases))
	for i, l := range leases {
		taskIDs[i], tokens[i] = l.TaskID, l.Token
	}
	return taskIDs, tokens
}

func readLeases(rows *sql.Rows, err error) (out []Lease, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l Lease
		if err := rows.Scan(&l.TaskID, &l.Token); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
