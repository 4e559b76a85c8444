package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
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

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// HandBack promises that the tasks are ready at once. Operators may write the columns that it sets,
// and no other. The relay's id stays on the row as a mark.
const handBackSQL = `/* outbox: hand back leased tasks of a relay */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND relay_id = $1::uuid
   LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL,
       timeline = ` + upkeep.LostTimeline + `
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

// An operator may not delete tasks.
const cancelFreedSQL = `/* outbox: remove canceled tasks whose lease was handed back */
SELECT outbox.cancel_task(c.task_id) FROM outbox.cancel c
 WHERE (SELECT t.state FROM outbox.task t WHERE t.task_id = c.task_id) <> 'leased'`

// HandBack makes all leased tasks of a relay ready at once, and returns their number. It is for a
// node that is surely dead: other relays take its tasks over after 10 s anyway. relayID is a
// [Relay]'s ID.
//
// A task that was asked to end is removed. The runs of the others count as attempts. A task that was
// lost before runs isolated, as it may have killed the node. A relay that lives after all loses these
// leases: it can neither complete nor fail the tasks, and within a heartbeat (3 s) their handlers'
// contexts end with the cause outbox.ErrLeaseLost. Tasks in [outbox.Task.Complete] are left alone.
// Tasks of Tx and Batch handlers return when the server ends the dead node's connections.
//
// It works in transactions of 1,000 tasks each: after an error the number is that of the committed
// ones. The audit log has an entry before them, and an entry after them: hand_back: done, or
// hand_back: failed.
func (c *Client) HandBack(ctx context.Context, relayID string) (tasks int64, err error) {
	if _, err := c.pool("HandBack"); err != nil {
		return 0, err
	}
	if !uuid.MatchString(relayID) {
		return 0, invalid("HandBack: %q is not the id of a relay, which is a UUID", relayID)
	}
	err = c.audited(ctx, AuditEntry{Action: ActionHandBack, Target: "relay " + relayID}, func() (int64, error) {
		for n := int64(maxRows); n == maxRows; {
			err := c.inTx(ctx, func(q outbox.Querier) error {
				result, err := q.ExecContext(ctx, c.schema.SQL(handBackSQL), relayID)
				if err == nil {
					n, err = result.RowsAffected()
				}
				if err == nil && n > 0 {
					_, err = q.ExecContext(ctx, c.schema.SQL(cancelFreedSQL))
				}
				return err
			})
			if err != nil {
				return tasks, failed("hand back tasks of relay "+relayID, err)
			}
			tasks += n
		}
		return tasks, nil
	})
	if tasks > 0 {
		wake.All()
	}
	return tasks, err
}

// Type is a task type that was ever enqueued, or has a setting, or a handler in a living relay.
type Type struct {
	outbox.TypeStats
	Paused     bool
	MaxRunning int // handlers.MaxRunning; 0: any number
	// MaxRunningPerKey is handlers.MaxRunningPerKey; 0: of a key of outbox.GroupBy one task runs at once.
	MaxRunningPerKey int
	Rate             int // handlers.Rate; 0: any number
	RatePer          time.Duration
	Relays           int      // alive, with a handler for it
	Failing          *Failing // nil: it does not fail
}

// Failing says that a type fails: since its last good minute, or within the last hour, at least three
// runs failed, and more than tasks finished. It is nil for a type that does not fail. In a good
// minute tasks finished, and at most as many runs failed. A run that ends with handlers.Snooze,
// RetryAfter or RunAgain is neither.
//
// It is known about a minute later, by the samples that relays take; see [Sample].
type Failing struct {
	Since     time.Time // the sample that it is counted from
	Finished  int64     // tasks since then
	Failed    int64     // runs since then
	LastError string    // of the latest dead letter, or of a retrying task that failed later; may be ""
}

const typesSQL = `/* outbox: inspect types */
SELECT s.task_type, bool_or(s.paused), COALESCE(max(s.max_running), 0), COALESCE(max(s.per_key), 0),
       COALESCE(max(s.rate), 0), COALESCE(max(s.rate_per), 0)::bigint, sum(s.relays)::bigint
  FROM (SELECT task_type, paused, max_running,
               (to_jsonb(p) ->> 'max_running_per_key')::integer AS per_key, -- older schemas lack the column
               rate, rate_per, 0 AS relays FROM outbox.task_type p
        UNION ALL
        SELECT t.task_type, false, NULL, NULL, NULL, NULL, count(DISTINCT l.relay_id)
          FROM outbox.relay l, unnest(l.task_types) AS t (task_type)
         WHERE l.alive_until > clock_timestamp() GROUP BY t.task_type) s
 GROUP BY s.task_type`

// The counts of types, and their samples of the last hour. What a good minute is, Failing says. A type
// that is missing in a sample was not known yet, unless there are too many for all to have samples.
// The last error is looked for among the tasks that are due first.
const failingSQL = `/* outbox: inspect types that fail */
WITH failed AS MATERIALIZED (
  SELECT g.task_type, g.finished, g.failed, unknown.at AS unknown_at
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS g (task_type, finished, failed)
    LEFT JOIN LATERAL (SELECT o.at, o.failed FROM outbox.sample o
                        WHERE o.task_type = g.task_type AND o.at >= now() - interval '1 hour'
                        ORDER BY o.at LIMIT 1) AS first ON true
    LEFT JOIN LATERAL (SELECT o.at FROM outbox.sample o
                        WHERE $4 AND o.task_type = '' AND o.at < COALESCE(first.at, now())
                          AND NOT EXISTS (SELECT FROM outbox.sample e WHERE e.task_type = g.task_type
                                             AND e.at < COALESCE(first.at, now()))
                        ORDER BY o.at DESC LIMIT 1) AS unknown ON true
   WHERE g.failed - CASE WHEN unknown.at IS NULL THEN first.failed ELSE 0 END >= 3),
minute AS MATERIALIZED (
  SELECT f.task_type, s.at, s.finished, s.failed,
         s.finished - lag(s.finished) OVER each AS finishes, s.failed - lag(s.failed) OVER each AS failures
    FROM failed AS f CROSS JOIN LATERAL (
      SELECT f.unknown_at AS at, 0 AS finished, 0 AS failed WHERE f.unknown_at IS NOT NULL
       UNION ALL
      SELECT o.at, o.finished, o.failed FROM outbox.sample o
       WHERE o.task_type = f.task_type AND o.at >= now() - interval '1 hour') AS s
  WINDOW each AS (PARTITION BY f.task_type ORDER BY s.at)),
begin AS MATERIALIZED (
  SELECT task_type, COALESCE(max(at) FILTER (WHERE finishes > 0 AND finishes >= failures), min(at)) AS at
    FROM minute GROUP BY task_type)
SELECT f.task_type, m.at, f.finished - m.finished, f.failed - m.failed, COALESCE((
         SELECT e.last_error FROM (
           (SELECT t.last_error, t.attempted_at AS at FROM outbox.task t
             WHERE t.state = 'scheduled' AND t.attempt > 0 AND t.task_type = f.task_type
             ORDER BY t.run_at LIMIT 100)
            UNION ALL
           (SELECT d.last_error, d.died_at FROM outbox.dead_task d
             WHERE (d.task_type, d.died_at) <= (f.task_type, 'infinity'::timestamptz)
               AND d.task_type >= f.task_type
             ORDER BY d.task_type DESC, d.died_at DESC, d.task_id DESC LIMIT 1)) AS e
          WHERE e.last_error IS NOT NULL ORDER BY e.at DESC NULLS LAST LIMIT 1), '')
  FROM failed AS f JOIN begin USING (task_type) JOIN minute AS m USING (task_type, at)
 WHERE f.failed - m.failed >= 3 AND f.failed - m.failed > f.finished - m.finished`

// failing returns those of the types that fail.
func (c *Client) failing(ctx context.Context, q outbox.Querier, all []outbox.TypeStats) (map[string]*Failing, error) {
	var types []string
	var finished, failed []int64
	for _, t := range all {
		if t.Failed > 0 {
			types, finished, failed = append(types, t.Type), append(finished, t.Finished), append(failed, t.Failed)
		}
	}
	found := map[string]*Failing{}
	if len(types) == 0 {
		return found, nil
	}
	args := []any{pq.Array(types), pq.Array(finished), pq.Array(failed), len(all) <= upkeep.SampleTypes}
	_, err := rows(ctx, q, c.schema.SQL(failingSQL), args, func(row scanner, _ *struct{}) error {
		var taskType string
		var f Failing
		err := row.Scan(&taskType, &f.Since, &f.Finished, &f.Failed, &f.LastError)
		found[taskType] = &f
		return err
	})
	return found, err
}

// Types returns all task types, sorted by name. Its counts are those of [outbox.Stats].
func (c *Client) Types(ctx context.Context) (types []Type, err error) {
	all := map[string]Type{}
	err = c.read(func(q outbox.Querier) error {
		stats, err := outbox.Stats(ctx, q, outbox.Schema(string(c.schema)))
		if err != nil {
			return err
		}
		failing, err := c.failing(ctx, q, stats)
		if err != nil {
			return err
		}
		for _, of := range stats {
			all[of.Type] = Type{TypeStats: of, Failing: failing[of.Type]}
		}
		types, err = rows(ctx, q, c.schema.SQL(typesSQL), nil, scanType)
		return err
	})
	if err != nil {
		return nil, failed("types", err)
	}
	for _, t := range types {
		if counted, ok := all[t.Type]; ok {
			t.TypeStats, t.Failing = counted.TypeStats, counted.Failing
		}
		all[t.Type] = t
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Type) int { return strings.Compare(a.Type, b.Type) }), nil
}

func scanType(row scanner, t *Type) error {
	var per int64
	err := row.Scan(&t.Type, &t.Paused, &t.MaxRunning, &t.MaxRunningPerKey, &t.Rate, &per, &t.Relays)
	t.RatePer = time.Duration(per) * time.Microsecond
	return err
}

// The channel of LISTEN is the schema's name: idle relays poll at once after the commit.
const pauseTypeSQL = `/* outbox: pause or resume a type */
WITH changed AS (
  INSERT INTO outbox.task_type AS t (task_type, paused) VALUES ($1, $2)
  ON CONFLICT (task_type) DO UPDATE SET paused = EXCLUDED.paused WHERE t.paused <> EXCLUDED.paused)
SELECT pg_notify($3, '')::text`

// PauseType stops all relays, in all processes, from starting tasks of the type, until ResumeType;
// restarts do not end it. It takes effect after the commit, at each relay's next poll: busy relays
// poll every 50 ms, and idle relays start no task. Running tasks go on; a group ends after its present
// task. Tasks can still be enqueued. A second pause, or a pause of an unknown type, is no error; a bad
// name of a type is outbox.ErrInvalidType. It needs SELECT, INSERT and UPDATE on outbox.task_type.
func (c *Client) PauseType(ctx context.Context, taskType string) error {
	return c.pauseType(ctx, ActionPause, taskType, true)
}

// ResumeType ends a pause after the commit, and wakes the relays, which start the tasks that became
// due meanwhile. Relays that cannot LISTEN see it at their next poll. All else is as for
// [Client.PauseType].
func (c *Client) ResumeType(ctx context.Context, taskType string) error {
	return c.pauseType(ctx, ActionResume, taskType, false)
}

func (c *Client) pauseType(ctx context.Context, action Action, taskType string, paused bool) error {
	if _, err := (outbox.TaskSpec{Type: taskType, Payload: struct{}{}}).Encode(); err != nil { // checks the type
		return err
	}
	err := c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		var ignored string
		err := q.QueryRowContext(ctx, c.schema.SQL(pauseTypeSQL), taskType, paused, string(c.schema)).Scan(&ignored)
		return []AuditEntry{{Action: action, Target: taskType, Count: 1}}, err
	})
	return failed(string(action)+" type "+taskType, err)
}

// Sample has the counts of a type at one minute of the last day. One of the relays takes it; without a
// relay there is none. Of more than 1,000 types only those with most tasks have samples; the sum is
// of all.
//
// Experimental: a minor version may change it.
type Sample struct {
	At          time.Time
	Type        string
	Ready       int64
	Scheduled   int64
	Retrying    int64
	Leased      int64
	Waiting     int64
	Dead        int64
	Finished    int64 // since the counters began, as TypeStats says
	Failed      int64
	OldestReady time.Duration
}

const samplesSQL = `/* outbox: inspect samples */
SELECT at, ready, scheduled, retrying, leased, waiting, dead, finished, failed, oldest_ready
  FROM outbox.sample
 WHERE task_type = $1 AND at >= now() - $2::bigint * interval '1 microsecond' ORDER BY at LIMIT 10000`

// SampleQuery selects samples. The zero value means those of all types for a day.
//
// Experimental: a minor version may change it.
type SampleQuery struct {
	Type string        // "": all types summed up; OldestReady is the greatest
	Last time.Duration // until now; 0: a day, which is all there is
}

// Samples returns the samples of a type, the oldest first.
//
// Experimental: a minor version may change it.
func (c *Client) Samples(ctx context.Context, q SampleQuery) ([]Sample, error) {
	if err := checkText("SampleQuery.Type", q.Type); err != nil {
		return nil, err
	}
	if q.Last < 0 {
		return nil, invalid("SampleQuery.Last: %v: must not be negative", q.Last)
	}
	last := cmp.Or(q.Last, 24*time.Hour)
	return list(ctx, c, "samples", samplesSQL, []any{q.Type, last.Microseconds()}, func(row scanner, s *Sample) error {
		var oldest int64
		err := row.Scan(&s.At, &s.Ready, &s.Scheduled, &s.Retrying, &s.Leased, &s.Waiting, &s.Dead,
			&s.Finished, &s.Failed, &oldest)
		s.Type, s.OldestReady = q.Type, time.Duration(oldest)*time.Microsecond
		return err
	})
}
