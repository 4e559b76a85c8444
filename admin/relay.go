package admin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Relay is a relay's process. One that has signed off is not there. One that died is there until an
// hour after another relay found it dead or took over its last task, whichever is later.
type Relay struct {
	ID         string
	Host       string
	PID        int
	StartedAt  time.Time
	AliveUntil time.Time
	Alive      bool // by PostgreSQL's clock
	// LastSeen is its latest heartbeat; they come every 3 s. Missing says that it still counts as
	// alive, but has had no heartbeat for 6 s: it has died or hangs.
	LastSeen    time.Time
	Missing     bool
	Types       []string
	Workers     int   // 0: not known
	Connections int   // that its pool may have; 0: not known, or any number
	Runs        []Run // 200 at most: the oldest of the journal, and the leases that end first
}

const relaysSQL = `/* outbox: inspect relays */
SELECT relay_id::text, host, pid, started_at, alive_until, alive_until > clock_timestamp() AS alive,
       to_json(task_types)::text, COALESCE(workers, 0), COALESCE(connections, 0),
       (extract(epoch FROM clock_timestamp() - alive_until) * 1000000)::bigint
  FROM outbox.relay ORDER BY alive DESC, host, started_at, relay_id LIMIT 1000`

// The journal has a row for each run or batch under way, and few others. It is read as a whole, up
// to a bound; a task of a run is still to be seen in outbox.task while its claim is open.
const relayRunsSQL = `/* outbox: inspect the runs of relays */
SELECT j.relay_id, j.ids, COALESCE((SELECT t.task_type FROM outbox.task t WHERE t.task_id = j.task_id), ''),
       j.started_at, j.lost
  FROM (SELECT r.relay_id::text, to_json(COALESCE(r.task_ids[1:1000], ARRAY[r.task_id]))::text AS ids, r.task_id,
               r.started_at, ` + lost + ` AS lost,
               row_number() OVER (PARTITION BY r.relay_id ORDER BY r.started_at, r.task_id) AS n
          FROM (SELECT relay_id, task_id, task_ids, started_at, lost_connection FROM outbox.running LIMIT 10000) r) j
 WHERE j.n <= $1
UNION ALL
SELECT t.relay_id::text, to_json(ARRAY[t.task_id])::text, t.task_type, COALESCE(t.attempted_at, t.run_at),
       ` + leaseLost + `
  FROM (SELECT relay_id FROM outbox.relay ORDER BY alive_until DESC LIMIT 1000) a
 CROSS JOIN LATERAL (
    SELECT l.relay_id, l.task_id, l.task_type, l.attempted_at, l.run_at, l.leased_until
      FROM outbox.task l WHERE l.state = 'leased' AND l.relay_id = a.relay_id
     ORDER BY l.leased_until LIMIT $1) t`

// Relays returns the relays with their runs, the living ones first; 1,000 at most.
func (c *Client) Relays(ctx context.Context) (relays []Relay, err error) {
	var runs []Run
	err = c.read(func(q outbox.Querier) error {
		if relays, err = rows(ctx, q, c.schema.SQL(relaysSQL), nil, scanRelay); err != nil {
			return err
		}
		runs, err = rows(ctx, q, c.schema.SQL(relayRunsSQL), []any{maxRuns}, scanRun)
		return err
	})
	if err != nil {
		return nil, failed("relays", err)
	}
	of := map[string][]Run{}
	for _, r := range runs {
		of[r.RelayID] = append(of[r.RelayID], r)
	}
	for i := range relays {
		relays[i].Runs = oldest(of[relays[i].ID])
	}
	return relays, nil
}

func scanRelay(row scanner, r *Relay) error {
	var types string
	var over int64
	err := row.Scan(&r.ID, &r.Host, &r.PID, &r.StartedAt, &r.AliveUntil, &r.Alive, &types, &r.Workers, &r.Connections,
		&over)
	if err != nil {
		return err
	}
	r.LastSeen = r.AliveUntil.Add(-upkeep.LeaseDuration)
	r.Missing = r.Alive && time.Duration(over)*time.Microsecond+upkeep.LeaseDuration > 2*upkeep.Interval
	return json.Unmarshal([]byte(types), &r.Types)
}
