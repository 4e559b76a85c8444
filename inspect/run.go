package inspect

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/txoutbox/outbox"
)

// maxRuns is how many runs are read of a task, or of a relay.
const maxRuns = 200

// lost is whether a run r of the journal is: its relay is dead, or its connection gone.
const lost = `(r.lost_connection OR NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp()))`

// leaseLost is whether any relay may take over the leased task t.
const leaseLost = `(COALESCE(t.leased_until < clock_timestamp(), false)
        OR NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id AND l.alive_until > clock_timestamp()))`

// A task is leased or in the journal. Its state is asked for in a way that no index of leased tasks fits.
const taskRunsSQL = `/* outbox: inspect the runs of a task */
(SELECT r.relay_id::text, to_json(ARRAY[r.task_id])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r WHERE r.task_id = $1::bigint AND r.task_ids IS NULL LIMIT $3)
UNION ALL
(SELECT r.relay_id::text, to_json(r.task_ids[1:1000])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r WHERE r.task_ids IS NOT NULL AND r.last_id >= $1 AND r.first_id <= $1 AND $1 = ANY (r.task_ids) LIMIT $3)
UNION ALL
SELECT t.relay_id::text, to_json(ARRAY[t.task_id])::text, $2::text, COALESCE(t.attempted_at, t.run_at), ` + leaseLost + `
  FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'leased'`

// runsOf reads the runs of a task.
func (s settings) runsOf(ctx context.Context, q outbox.Querier, t Task) ([]Run, error) {
	rows, err := q.QueryContext(ctx, s.sql(taskRunsSQL), t.TaskID, t.Type, maxRuns)
	if err != nil {
		return nil, err
	}
	runs, err := scanRuns(rows)
	return oldest(runs), err
}

func scanRuns(rows *sql.Rows) ([]Run, error) {
	defer rows.Close()
	var runs []Run
	for rows.Next() {
		var r Run
		var ids string
		if err := rows.Scan(&r.RelayID, &ids, &r.Type, &r.StartedAt, &r.Lost); err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(ids), &r.TaskIDs); err != nil {
			return nil, err
		}
		runs = append(runs, r)
	}
	return runs, rows.Err()
}

// oldest are the first of the runs to begin.
func oldest(runs []Run) []Run {
	slices.SortStableFunc(runs, func(a, b Run) int { return a.StartedAt.Compare(b.StartedAt) })
	return runs[:min(len(runs), maxRuns)]
}
