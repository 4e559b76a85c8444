package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
)

// The latest firing counts as well, so that a server's clock that was set back does not repeat one.
const scheduleNowSQL = `/* outbox: from when a schedule is computed */
SELECT (extract(epoch FROM GREATEST(now(), (SELECT last_at FROM outbox.schedule WHERE name = $1))) * 1000000)::bigint`

const addScheduleSQL = `/* outbox: add or change a schedule */
INSERT INTO outbox.schedule AS s (name, next_at, catch_up, task_type, payload, spec, timing, definition)
VALUES ($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3, $4, $5::jsonb, $6, $7, $8)
ON CONFLICT (name) DO UPDATE SET catch_up = EXCLUDED.catch_up, task_type = EXCLUDED.task_type, payload = EXCLUDED.payload, spec = EXCLUDED.spec,
       timing = EXCLUDED.timing, definition = EXCLUDED.definition,
       next_at = CASE WHEN s.timing = EXCLUDED.timing THEN COALESCE(s.next_at, EXCLUDED.next_at) ELSE EXCLUDED.next_at END
 WHERE s.definition <> EXCLUDED.definition OR s.next_at IS NULL AND EXCLUDED.next_at IS NOT NULL`

// register adds this relay's schedules, or changes them to what they are here. Others' stay. One whose Next panics rests first.
func (s *scheduler) register(ctx context.Context) error {
	for i := range s.all {
		k := &s.all[i]
		if s.registered[k.Name] || s.rests(k.Name) {
			continue
		}
		switch err := s.add(ctx, k); {
		case errors.Is(err, errNextPanicked):
			s.rest(k.Name, err)
		case err != nil:
			return fmt.Errorf("relay: add the schedule %q: %w", k.Name, err)
		default:
			s.registered[k.Name] = true
		}
	}
	return nil
}

func (s *scheduler) add(ctx context.Context, k *known) error {
	return s.r.conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var from int64
		if err := tx.QueryRowContext(ctx, s.r.sql(scheduleNowSQL), k.Name).Scan(&from); err != nil {
			return err
		}
		f, why := within(nextTimeout, func() (f firings) {
			f.next, f.why = k.after(time.UnixMicro(from).UTC())
			return f
		})
		if errors.Is(why, errNextPanicked) {
			return why
		}
		if why = errors.Join(why, f.why); why != nil {
			s.ended(k.Name, why)
		}
		_, err := tx.ExecContext(ctx, s.r.sql(addScheduleSQL), k.Name, micros(f.next), k.CatchUp.String(), k.Task.Type, k.payload, k.Spec, k.timing, k.definition)
		return err
	})
}

// ErrUnknownSchedule is returned for a name that is not in outbox.schedule.
var ErrUnknownSchedule = errors.New("relay: there is no such schedule")

const (
	removeScheduleSQL = `/* outbox: remove a schedule */
DELETE FROM outbox.schedule WHERE name = $1`
	pauseScheduleSQL = `/* outbox: pause or resume a schedule */
UPDATE outbox.schedule SET paused = $2 WHERE name = $1`
)

// RemoveSchedule removes a schedule by its name; tasks that it has enqueued stay. A relay that has it in its Config
// fires it no more, but adds it again when it starts, so deploy without it first. q is a transaction, with
// which it commits, or a *sql.DB; other pools are refused with outbox.ErrNoTransaction. schemaName is the outbox's schema if it is not "outbox". Errors:
// ErrUnknownSchedule, or the database's.
func RemoveSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, removeScheduleSQL, name)
}

// PauseSchedule makes a schedule pass its firings over, for all relays, until [ResumeSchedule]; restarts do not end
// it. Parameters and errors are as of RemoveSchedule.
func PauseSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, pauseScheduleSQL, name, true)
}

// ResumeSchedule ends a pause. The firings that relays passed over meanwhile are not made up for. Parameters and
// errors are as of RemoveSchedule.
func ResumeSchedule(ctx context.Context, q outbox.Querier, name string, schemaName ...string) error {
	return changeSchedule(ctx, q, schemaName, pauseScheduleSQL, name, false)
}

func changeSchedule(ctx context.Context, q outbox.Querier, schemaName []string, query, name string, args ...any) error {
	r := &Relay{config: Config{Schema: outbox.DefaultSchema}}
	if len(schemaName) > 0 {
		r.config.Schema = schemaName[0]
	}
	if len(schemaName) > 1 || !outbox.ValidSchema(r.config.Schema) {
		return fmt.Errorf("relay: schemas %q: give one, a lower-case name like outbox", schemaName)
	}
	if what := badName(name); what != "" {
		return fmt.Errorf("relay: the name %.32q of a schedule: %s", name, what)
	}
	change := func(q outbox.Querier) error {
		result, err := q.ExecContext(ctx, r.sql(query), append([]any{name}, args...)...)
		if err != nil {
			return fmt.Errorf("relay: change the schedule %q: %w", name, err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(fmt.Errorf("%w: %q", ErrUnknownSchedule, name), err)
		}
		return nil
	}
	if db, ok := q.(*sql.DB); ok { // a transaction of its own, as database/sql could send a statement of a pool twice
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return change(tx) })
	}
	if _, pool := q.(interface{ SetMaxOpenConns(int) }); pool || q == nil {
		return fmt.Errorf("relay: change the schedule %q: %w: a %T is not one; of a *sqlx.DB pass the field DB", name, outbox.ErrNoTransaction, q)
	}
	return change(q)
}
