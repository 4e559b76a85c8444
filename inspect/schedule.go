package inspect

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Schedule is a row of relay.Config.Schedules. It stays when no relay has it any more, until relay.RemoveSchedule.
type Schedule struct {
	Name      string
	Type      string
	Spec      string    // its timing as text
	NextAt    time.Time // zero: it has ended, or its Next misbehaved
	LastAt    time.Time // zero: never
	CreatedAt time.Time
	Paused    bool
	CatchUp   string // once, all
}

const schedulesSQL = `/* outbox: inspect schedules */
SELECT name, task_type, spec, next_at, last_at, created_at, paused, catch_up FROM outbox.schedule ORDER BY name COLLATE "C"`

// Schedules returns the schedules, sorted by name.
func Schedules(ctx context.Context, q outbox.Querier, opts ...Option) ([]Schedule, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, s.sql(schedulesSQL))
	if err != nil {
		return nil, fmt.Errorf("inspect: schedules: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var out []Schedule
	for rows.Next() {
		var found Schedule
		var next, last sql.NullTime
		if err := rows.Scan(&found.Name, &found.Type, &found.Spec, &next, &last, &found.CreatedAt, &found.Paused, &found.CatchUp); err != nil {
			return nil, fmt.Errorf("inspect: schedules: %w", err)
		}
		found.NextAt, found.LastAt = next.Time, last.Time
		out = append(out, found)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("inspect: schedules: %w", pgerr.WithoutDSN(err))
	}
	return out, nil
}
