package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
)

// Schedule is a row of relay.Config.Schedules. It stays when no relay has it any more, until
// RemoveSchedule.
type Schedule struct {
	Name      string
	Type      string
	Spec      string    // its timing as text
	NextAt    time.Time // zero: it has ended, or its Next misbehaved
	LastAt    time.Time // zero: never
	CreatedAt time.Time
	Paused    bool
	CatchUp   outbox.CatchUp
}

const schedulesSQL = `/* outbox: inspect schedules */
SELECT name, task_type, spec, next_at, last_at, created_at, paused, catch_up
  FROM outbox.schedule ORDER BY name COLLATE "C"`

// Schedules returns the schedules, sorted by name.
func (c *Client) Schedules(ctx context.Context) ([]Schedule, error) {
	return list(ctx, c, "schedules", schedulesSQL, nil, func(row scanner, s *Schedule) error {
		var next, last sql.NullTime
		err := row.Scan(&s.Name, &s.Type, &s.Spec, &next, &last, &s.CreatedAt, &s.Paused, &s.CatchUp)
		s.NextAt, s.LastAt = next.Time, last.Time
		return err
	})
}

const (
	removeScheduleSQL = `/* outbox: remove a schedule */
DELETE FROM outbox.schedule WHERE name = $1`
	pauseScheduleSQL = `/* outbox: pause or resume a schedule */
UPDATE outbox.schedule SET paused = $2 WHERE name = $1`
)

// PauseSchedule makes a schedule skip its firings, for all relays, until ResumeSchedule; restarts do
// not end it. The error is ErrNotFound if there is no schedule of that name.
func (c *Client) PauseSchedule(ctx context.Context, name string) error {
	return c.changeSchedule(ctx, ActionPauseSchedule, pauseScheduleSQL, name, true)
}

// ResumeSchedule ends a pause. Skipped firings are not made up for.
// Errors are as of [Client.PauseSchedule].
func (c *Client) ResumeSchedule(ctx context.Context, name string) error {
	return c.changeSchedule(ctx, ActionResumeSchedule, pauseScheduleSQL, name, false)
}

// RemoveSchedule removes a schedule; tasks that it has enqueued stay. A relay that has it in its
// Config adds it again within 10 s, so deploy without it first, or use PauseSchedule. Errors are as
// of [Client.PauseSchedule].
func (c *Client) RemoveSchedule(ctx context.Context, name string) error {
	return c.changeSchedule(ctx, ActionRemoveSchedule, removeScheduleSQL, name)
}

func (c *Client) changeSchedule(ctx context.Context, action Action, query, name string, args ...any) error {
	if err := checkText("the name of a schedule", name); err != nil {
		return err
	}
	err := c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		result, err := q.ExecContext(ctx, c.schema.SQL(query), append([]any{name}, args...)...)
		if err != nil {
			return nil, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return nil, fmt.Errorf("%w: schedule %.128q", ErrNotFound, name)
		}
		return []AuditEntry{{Action: action, Target: name, Count: 1}}, nil
	})
	if errors.Is(err, ErrNotFound) {
		return err
	}
	return failed(fmt.Sprintf("change the schedule %.128q", name), err)
}
