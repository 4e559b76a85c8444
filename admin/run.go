package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
)

// Run is a run of a task, in the journal of Tx and Batch handlers or by its lease.
type Run struct {
	TaskIDs   []int64 // several for a batch, at most 1,000 of them
	Type      string  // "" where it is not known: the task is gone
	RelayID   string
	StartedAt time.Time
	// Lost: its relay is dead, or lost the run's connection, or the lease has run out. The run counts as an
	// attempt when the task is claimed next.
	Lost bool
}

// maxRuns is how many runs are read of a task, or of a relay.
const maxRuns = 200

// lost is whether a run r of the journal is: its relay is dead, or its connection gone.
const lost = `(r.lost_connection
        OR NOT EXISTS (SELECT 1 FROM outbox.relay l
                        WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp()))`

// leaseLost is whether any relay may take over the leased task t.
const leaseLost = `(COALESCE(t.leased_until < clock_timestamp(), false)
        OR NOT EXISTS (SELECT 1 FROM outbox.relay l
                        WHERE l.relay_id = t.relay_id AND l.alive_until > clock_timestamp()))`

// A task is leased or in the journal. Its state is asked for in a way that no index of leased tasks
// fits.
const taskRunsSQL = `/* outbox: inspect the runs of a task */
(SELECT r.relay_id::text, to_json(ARRAY[r.task_id])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r WHERE r.task_id = $1::bigint AND r.task_ids IS NULL LIMIT $3)
UNION ALL
(SELECT r.relay_id::text, to_json(r.task_ids[1:1000])::text, $2::text, r.started_at, ` + lost + `
  FROM outbox.running r
  WHERE r.task_ids IS NOT NULL AND r.last_id >= $1 AND r.first_id <= $1 AND $1 = ANY (r.task_ids) LIMIT $3)
UNION ALL
SELECT t.relay_id::text, to_json(ARRAY[t.task_id])::text, $2::text, COALESCE(t.attempted_at, t.run_at),
       ` + leaseLost + `
  FROM outbox.task t WHERE t.task_id = $1 AND t.state || '' = 'leased'`

// runsOf reads the runs of a task.
func (c *Client) runsOf(ctx context.Context, q outbox.Querier, taskID int64, taskType string) ([]Run, error) {
	runs, err := rows(ctx, q, c.schema.SQL(taskRunsSQL), []any{taskID, taskType, maxRuns}, scanRun)
	return oldest(runs), err
}

func scanRun(row scanner, r *Run) error {
	var ids string
	if err := row.Scan(&r.RelayID, &ids, &r.Type, &r.StartedAt, &r.Lost); err != nil {
		return err
	}
	return json.Unmarshal([]byte(ids), &r.TaskIDs)
}

// oldest are the first of the runs to begin.
func oldest(runs []Run) []Run {
	slices.SortStableFunc(runs, func(a, b Run) int { return a.StartedAt.Compare(b.StartedAt) })
	return runs[:min(len(runs), maxRuns)]
}
