package admin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
)

// Type is a task type that was ever enqueued, or has a setting, or a handler in a living relay.
type Type struct {
	outbox.TypeStats
	Paused     bool
	MaxRunning int // handlers.MaxRunning; 0: any number
	Rate       int // handlers.Rate; 0: any number
	RatePer    time.Duration
	Relays     int // alive, with a handler for it
}

const typesSQL = `/* outbox: inspect types */
SELECT s.task_type, bool_or(s.paused), COALESCE(max(s.max_running), 0), COALESCE(max(s.rate), 0),
       COALESCE(max(s.rate_per), 0)::bigint, sum(s.relays)::bigint
  FROM (SELECT task_type, paused, max_running, rate, rate_per, 0 AS relays FROM outbox.task_type
        UNION ALL
        SELECT t.task_type, false, NULL, NULL, NULL, count(DISTINCT l.relay_id)
          FROM outbox.relay l, unnest(l.task_types) AS t (task_type)
         WHERE l.alive_until > clock_timestamp() GROUP BY t.task_type) s
 GROUP BY s.task_type`

// Types returns all task types, sorted by name. Its counts are those of [outbox.Stats].
func (c *Client) Types(ctx context.Context) (types []Type, err error) {
	all := map[string]Type{}
	err = c.read(func(q outbox.Querier) error {
		stats, err := outbox.Stats(ctx, q, outbox.Schema(string(c.schema)))
		if err != nil {
			return err
		}
		for _, of := range stats {
			all[of.Type] = Type{TypeStats: of}
		}
		types, err = rows(ctx, q, c.schema.SQL(typesSQL), nil, scanType)
		return err
	})
	if err != nil {
		return nil, failed("types", err)
	}
	for _, t := range types {
		if counted, ok := all[t.Type]; ok {
			t.TypeStats = counted.TypeStats
		}
		all[t.Type] = t
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Type) int { return strings.Compare(a.Type, b.Type) }), nil
}

func scanType(row scanner, t *Type) error {
	var per int64
	err := row.Scan(&t.Type, &t.Paused, &t.MaxRunning, &t.Rate, &per, &t.Relays)
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
