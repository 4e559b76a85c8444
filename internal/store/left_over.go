package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

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
