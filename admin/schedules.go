package admin

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
)

// Schedule is a schedule of a relay.Config, or one that [Client.PutSchedule] has stored. It stays when no
// relay has it any more, until RemoveSchedule.
type Schedule struct {
	Name    string         // 1 to 128 bytes
	Type    string         // of its tasks; must not be empty
	Spec    string         // its timing as text, for relay.Config.ParseSchedule of a stored one; 1 to 1,000 bytes
	CatchUp outbox.CatchUp // "": outbox.CatchUpOnce
	Paused  bool           // it does not fire

	Stored   bool   // by PutSchedule
	TimeZone string // of a stored one, such as Europe/Berlin; "": UTC
	// Wrong is why a relay cannot fire a stored one, as it said last; "": nothing.
	Wrong string

	NextAt    time.Time // zero: it has ended, its Next misbehaved, or no relay has seen a stored one yet
	LastAt    time.Time // zero: never
	CreatedAt time.Time // set by PutSchedule, or by the relay that stored it first
}

// ErrScheduleInCode: a relay.Config has, or had, a schedule of this name.
var ErrScheduleInCode = errors.New("admin: the schedule is of a relay's Config")

const schedulesSQL = `/* outbox: inspect schedules */
SELECT name, task_type, spec, next_at, last_at, created_at, paused, catch_up, stored, time_zone, COALESCE(wrong, '')
  FROM outbox.schedule ORDER BY name COLLATE "C"`

// Schedules returns the schedules, sorted by name.
func (c *Client) Schedules(ctx context.Context) ([]Schedule, error) {
	return list(ctx, c, "schedules", schedulesSQL, nil, func(row scanner, s *Schedule) error {
		var next, last sql.NullTime
		err := row.Scan(&s.Name, &s.Type, &s.Spec, &next, &last, &s.CreatedAt, &s.Paused, &s.CatchUp,
			&s.Stored, &s.TimeZone, &s.Wrong)
		s.NextAt, s.LastAt = next.Time, last.Time
		return err
	})
}

const (
	removeScheduleSQL = `/* outbox: remove a schedule */
DELETE FROM outbox.schedule WHERE name = $1`
	pauseScheduleSQL = `/* outbox: pause or resume a schedule */
UPDATE outbox.schedule SET paused = $2 WHERE name = $1`
	runScheduleSQL = `/* outbox: fire a schedule now */
SELECT outbox.fire_schedule($1)`
	putScheduleSQL = `/* outbox: store a schedule */
SELECT outbox.put_schedule($1, $2, $3::jsonb, $4, $5, $6, $7, $8)`
)

// PutSchedule stores a schedule, or replaces the stored one of its Name: Type, Spec, TimeZone, CatchUp and Paused
// of s, and the payload of its tasks, as that of outbox.Enqueue; nil keeps the payload, which is {} at first. The
// other fields of s are ignored. Within 10 s each relay with a relay.Config.ParseSchedule knows it. It then fires
// like a schedule of the code: each firing enqueues one task. With the same Spec and TimeZone its next firing
// stays.
//
// What a relay finds wrong with it is in Wrong of Schedules, and it does not fire. Without such a relay nothing
// fires it, which the doctor says. Type and payload are not compared with a handler: RunScheduleNow tries them.
//
// Errors: outbox.ErrInvalidOption, also for a TimeZone that this process does not know, ErrInvalidType,
// ErrInvalidPayload and ErrPayloadTooLarge of package outbox, before anything is written; ErrScheduleInCode. Where
// a relay's Config has the Name, also later, its schedule takes the place of the stored one.
func (c *Client) PutSchedule(ctx context.Context, s Schedule, payload any) error {
	if err := cmp.Or(checkLength("the name of a schedule", s.Name, 1, 128),
		checkLength("the spec of a schedule", s.Spec, 1, 1000)); err != nil {
		return err
	}
	task := outbox.TaskSpec{Type: s.Type, Payload: payload}
	if payload == nil {
		task.Payload = struct{}{}
	}
	encoded, err := task.Encode()
	if err != nil {
		return err
	}
	switch s.CatchUp {
	case "":
		s.CatchUp = outbox.CatchUpOnce
	case outbox.CatchUpOnce, outbox.CatchUpAll:
	default:
		return invalid("CatchUp: %.32q: must be outbox.CatchUpOnce or outbox.CatchUpAll", s.CatchUp)
	}
	if _, err := time.LoadLocation(s.TimeZone); err != nil || s.TimeZone == "Local" {
		return invalid("TimeZone: %.64q is no time zone such as Europe/Berlin", s.TimeZone)
	}
	return c.actOnSchedule(ctx, ActionPutSchedule, s.Name, func(q outbox.Querier) (refused, err error) {
		var stored bool
		err = q.QueryRowContext(ctx, c.schema.SQL(putScheduleSQL), s.Name, s.Type, string(encoded), s.Spec, s.TimeZone,
			string(s.CatchUp), s.Paused, payload == nil).Scan(&stored)
		if err == nil && !stored {
			refused = fmt.Errorf("%w: %.128q: choose another name, or remove it from the code and by RemoveSchedule",
				ErrScheduleInCode, s.Name)
		}
		return refused, err
	})
}

// RunScheduleNow makes a schedule of either sort due now: a relay that has it fires it within 10 s. The later
// firings stay as they are, but of a timing that counts from the last one, as "@every 1h" of robfig/cron. One
// that is due already fires no more often for it, and a pause before the firing drops it. Errors are as of
// [Client.PauseSchedule], and outbox.ErrInvalidOption if it is paused or Wrong.
func (c *Client) RunScheduleNow(ctx context.Context, name string) error {
	return c.actOnSchedule(ctx, ActionRunSchedule, name, func(q outbox.Querier) (refused, err error) {
		var became sql.NullString
		err = q.QueryRowContext(ctx, c.schema.SQL(runScheduleSQL), name).Scan(&became)
		switch {
		case err != nil:
		case !became.Valid:
			refused = noSchedule(name)
		case became.String == "paused":
			refused = invalid("the schedule %.128q is paused: resume it first", name)
		case became.String == "wrong":
			refused = invalid("the schedule %.128q cannot fire: see Wrong of Schedules", name)
		}
		return refused, err
	})
}

func noSchedule(name string) error { return fmt.Errorf("%w: schedule %.128q", ErrNotFound, name) }

// PauseSchedule makes a schedule skip its firings, for all relays, until ResumeSchedule; restarts do
// not end it. The error is ErrNotFound if there is no schedule of that name.
func (c *Client) PauseSchedule(ctx context.Context, name string) error {
	return c.changeSchedule(ctx, ActionPauseSchedule, pauseScheduleSQL, name, true)
}

// ResumeSchedule ends the pause of a schedule. Skipped firings are not made up for. Errors are as
// of [Client.PauseSchedule].
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
	return c.actOnSchedule(ctx, action, name, func(q outbox.Querier) (refused, err error) {
		result, err := q.ExecContext(ctx, c.schema.SQL(query), append([]any{name}, args...)...)
		if err != nil {
			return nil, err
		}
		n, err := result.RowsAffected()
		if n == 0 {
			refused = noSchedule(name)
		}
		return refused, err
	})
}

// actOnSchedule calls f in a transaction, and audits it. What f refuses is returned as it is.
func (c *Client) actOnSchedule(
	ctx context.Context, action Action, name string, f func(q outbox.Querier) (refused, err error),
) error {
	if err := checkText("the name of a schedule", name); err != nil {
		return err
	}
	var refused error
	err := c.act(ctx, func(q outbox.Querier) (_ []AuditEntry, err error) {
		if refused, err = f(q); err == nil {
			err = refused
		}
		return []AuditEntry{{Action: action, Target: name, Count: 1}}, err
	})
	if err != nil && refused != nil {
		return refused
	}
	return failed(fmt.Sprintf("change the schedule %.128q", name), err)
}
