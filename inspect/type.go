package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Type is a task type: one that was ever enqueued, has a setting, or has a handler in a relay that is alive.
type Type struct {
	outbox.TypeStats
	Paused     bool
	MaxRunning int // handlers.MaxRunningTotal; 0: any number
	Rate       int // handlers.Rate; 0: any number
	RatePer    time.Duration
	Relays     int // alive, with a handler for it
}

const typesSQL = `/* outbox: inspect types */
SELECT s.task_type, bool_or(s.paused), COALESCE(max(s.max_running), 0), COALESCE(max(s.rate), 0), COALESCE(max(s.rate_per), 0)::bigint, sum(s.relays)::bigint
  FROM (SELECT task_type, paused, max_running, rate, rate_per, 0 AS relays FROM outbox.task_type
        UNION ALL
        SELECT t.task_type, false, NULL, NULL, NULL, count(DISTINCT l.relay_id) FROM outbox.relay l, unnest(l.task_types) AS t (task_type)
         WHERE l.alive_until > clock_timestamp() GROUP BY t.task_type) s
 GROUP BY s.task_type`

// Types returns all task types, sorted by name. Its counts are those of [outbox.Stats].
func Types(ctx context.Context, q outbox.Querier, opts ...Option) ([]Type, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	stats, err := outbox.Stats(ctx, q, outbox.Schema(s.schema))
	if err != nil {
		return nil, fmt.Errorf("inspect: types: %w", err)
	}
	all := map[string]*Type{}
	for _, of := range stats {
		all[of.Type] = &Type{TypeStats: of}
	}
	if err := s.addSettings(ctx, q, all); err != nil {
		return nil, fmt.Errorf("inspect: types: %w", pgerr.WithoutDSN(err))
	}
	out := make([]Type, 0, len(all))
	for _, t := range all {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b Type) int { return strings.Compare(a.Type, b.Type) })
	return out, nil
}

// addSettings adds what holds for the types, and those that were never enqueued.
func (s settings) addSettings(ctx context.Context, q outbox.Querier, all map[string]*Type) error {
	rows, err := q.QueryContext(ctx, s.sql(typesSQL))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var found Type
		var per int64
		if err := rows.Scan(&found.Type, &found.Paused, &found.MaxRunning, &found.Rate, &per, &found.Relays); err != nil {
			return err
		}
		found.RatePer = time.Duration(per) * time.Microsecond
		if counted := all[found.Type]; counted != nil {
			found.TypeStats = counted.TypeStats
		}
		all[found.Type] = &found
	}
	return rows.Err()
}
