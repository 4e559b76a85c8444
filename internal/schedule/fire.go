package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

// believed is how far ahead of now a stored time may lie. What lies further ahead was written while
// the server's clock was.
const believed = `interval '1 minute'`

// The latest firing counts as well, so that a server's clock that was set back a little does not
// repeat one.
const fromSQL = `/* outbox: from when a schedule is computed */
SELECT (extract(epoch FROM GREATEST(now(), (SELECT last_at FROM outbox.schedule
 WHERE name = $1 AND last_at < now() + ` + believed + `))) * 1000000)::bigint`

// forsaken says that no relay fires the schedule of the row s: no living one has its definition, or
// it is long overdue. A relay of an older version does not say what it has.
const forsaken = `(s.next_at < clock_timestamp() - interval '2 minutes'
                 OR NOT EXISTS (SELECT 1 FROM outbox.relay r WHERE r.alive_until > clock_timestamp()
                                   AND (r.schedules IS NULL OR r.schedules ->> s.name = s.definition)))`

const takesSQL = `/* outbox: whether a stored schedule has the name */
SELECT stored, paused FROM outbox.schedule WHERE name = $1`

// addSQL adds a schedule, or changes it to what it is here. $9: only if no relay fires it.
const addSQL = `/* outbox: add or change a schedule */
INSERT INTO outbox.schedule AS s (name, next_at, catch_up, task_type, payload, spec, timing, definition)
VALUES ($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3, $4, $5::jsonb, $6, $7, $8)
ON CONFLICT (name) DO UPDATE
   SET catch_up = EXCLUDED.catch_up, task_type = EXCLUDED.task_type, payload = EXCLUDED.payload,
       spec = EXCLUDED.spec, timing = EXCLUDED.timing, definition = EXCLUDED.definition,
       stored = false, time_zone = '', wrong = NULL,
       next_at = CASE WHEN s.timing = EXCLUDED.timing THEN COALESCE(s.next_at, EXCLUDED.next_at)
                      ELSE EXCLUDED.next_at END
 WHERE (s.stored OR s.definition <> EXCLUDED.definition OR s.next_at IS NULL AND EXCLUDED.next_at IS NOT NULL)
   AND (NOT $9::boolean OR ` + forsaken + `)`

// register adds this relay's schedules, or changes them to what they are here. Others' stay. One
// that it has registered before it changes only if no relay fires it any more. One whose Next
// panics rests first.
func (s *Scheduler) register(ctx context.Context) error {
	for i := range s.Schedules {
		one := &s.Schedules[i]
		if one.stored {
			if err := s.registerStored(ctx, one); err != nil {
				return err
			}
			continue
		}
		if s.registered[one.Name] || s.resting(one.Name) {
			continue
		}
		switch err := s.add(ctx, one); {
		case errors.Is(err, errNextPanicked):
			s.rest(ctx, one.Name, err)
		case err != nil:
			return pgerr.Within(fmt.Sprintf("relay: add the schedule %q", one.Name), err)
		default:
			s.registered[one.Name], s.known[one.Name] = true, true
		}
	}
	return nil
}

// registerStored sets the first firing of a stored schedule, once for each change of it.
func (s *Scheduler) registerStored(ctx context.Context, one *Schedule) error {
	if s.started[one.Name] == one.definition || s.resting(one.Name) {
		return nil
	}
	done, err := s.start(ctx, one)
	switch {
	case ofSchedule(err):
		s.rest(ctx, one.Name, err)
	case err != nil:
		return pgerr.Within(fmt.Sprintf("relay: begin the schedule %q", one.Name), err)
	case done:
		s.started[one.Name] = one.definition
	}
	return nil
}

func (s *Scheduler) add(ctx context.Context, one *Schedule) error {
	return s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var from int64
		if err := tx.QueryRowContext(ctx, s.Schema.SQL(fromSQL), one.Name).Scan(&from); err != nil {
			return err
		}
		f, err := one.first(time.UnixMicro(from).UTC())
		if err != nil {
			return err
		}
		if f.why != nil {
			s.ended(one.Name, f.why)
		}
		var stored, paused bool
		if err := tx.QueryRowContext(ctx, s.Schema.SQL(takesSQL), one.Name).Scan(&stored, &paused); err == nil && stored {
			s.Log.Warn("outbox: a schedule of this relay's Config takes the place of a stored one of its name",
				"schedule", one.Name, "paused", paused)
		} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = tx.ExecContext(ctx, s.Schema.SQL(addSQL), one.Name, micros(f.next), string(one.CatchUp),
			one.Task.Type, one.payload, one.Spec, one.timing, one.definition, s.known[one.Name])
		return err
	})
}

// The rows of this relay's schedules: another process may have changed or removed one, and a clock
// that was ahead may have written its next firing.
const watchSQL = `/* outbox: find the next firing */
SELECT k.name, s.name IS NULL, s.definition <> k.definition, ` + forsaken + `,
       (extract(epoch FROM s.next_at) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
  FROM unnest($1::text[], $2::text[]) AS k (name, definition) LEFT JOIN outbox.schedule s ON s.name = k.name`

// seen is a schedule of this relay as it is in the table.
type seen struct {
	name     string
	missing  bool
	changed  sql.NullBool // another process has registered it otherwise,
	forsaken sql.NullBool // and no relay fires it
	next     sql.NullInt64
	now      int64
}

// nextFiring returns in how long the next of the schedules is due. What nobody fires any more is to
// be registered again.
func (s *Scheduler) nextFiring(ctx context.Context) (wait time.Duration, err error) {
	all, err := s.look(ctx)
	if err != nil {
		return 0, err
	}
	wait = recheck
	for _, one := range all {
		switch {
		case s.of(one.name).stored && (one.missing || one.changed.Bool):
			s.unread = true
		case one.missing, one.changed.Bool && one.forsaken.Bool:
			s.registered[one.name] = false
			delete(s.changed, one.name)
			s.Log.Info("outbox: a schedule that no relay fires is registered again", "schedule", one.name)
			wait = pause
		case one.changed.Bool:
			if !s.changed[one.name] {
				s.changed[one.name] = true
				s.Log.Warn("outbox: a schedule was changed by another process; this relay does not fire it", "schedule", one.name)
			}
		case one.next.Valid:
			next, err := s.believe(ctx, one)
			if err != nil {
				return 0, err
			}
			wait = min(wait, time.Duration(next-one.now)*time.Microsecond)
		}
	}
	if s.unread {
		wait = min(wait, pause)
	}
	return wait, nil
}

func (s *Scheduler) look(ctx context.Context) (all []seen, err error) {
	names, definitions := s.keys(nil)
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		all = nil
		rows, err := tx.QueryContext(ctx, s.Schema.SQL(watchSQL), pq.Array(names), pq.Array(definitions))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var one seen
			err := rows.Scan(&one.name, &one.missing, &one.changed, &one.forsaken, &one.next, &one.now)
			if err != nil {
				return err
			}
			all = append(all, one)
		}
		return rows.Err()
	})
	return all, err
}

const setNextSQL = `/* outbox: set back a firing that a clock ahead has put off */
UPDATE outbox.schedule SET next_at = timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
 WHERE name = $1 AND next_at = timestamptz 'epoch' + $2::bigint * interval '1 microsecond'`

// farAhead is from when on a next firing is compared with the timing's.
const farAhead = time.Minute

// believe returns the next firing. One that lies further ahead than the timing gives now was
// computed while the server's clock was ahead: it is set back.
func (s *Scheduler) believe(ctx context.Context, one seen) (next int64, err error) {
	next = one.next.Int64
	if time.Duration(next-one.now)*time.Microsecond < farAhead {
		return next, nil
	}
	f, err := s.of(one.name).first(time.UnixMicro(one.now).UTC())
	if err != nil || f.why != nil || next-f.next.UnixMicro() < farAhead.Microseconds() {
		return next, nil // what is wrong with its Next shows when it fires
	}
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.Schema.SQL(setNextSQL), one.name, next, f.next.UnixMicro())
		return err
	})
	if err != nil {
		return 0, err
	}
	s.Log.Warn("outbox: a schedule's next firing lay further ahead than its timing says, "+
		"as if PostgreSQL's clock had been ahead; it is set back",
		"schedule", one.name, "from", time.UnixMicro(next).UTC(), "to", f.next)
	return f.next.UnixMicro(), nil
}

// dueSQL locks the schedule that has been due for longest.
const dueSQL = `/* outbox: lock a schedule that is due */
SELECT s.name, (extract(epoch FROM s.next_at) * 1000000)::bigint, (extract(epoch FROM now()) * 1000000)::bigint,
       s.paused,
       set_config('idle_in_transaction_session_timeout', $3, true), set_config('lock_timeout', $3, true)
  FROM outbox.schedule s JOIN unnest($1::text[], $2::text[]) AS k (name, definition)
    ON s.name = k.name AND s.definition = k.definition
 WHERE s.next_at <= now()
 ORDER BY s.next_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED`

// firedSQL sets the next firing.
const firedSQL = `/* outbox: set the next firing */
UPDATE outbox.schedule SET next_at = timestamptz 'epoch' + $2::bigint * interval '1 microsecond', wrong = NULL,
       last_at = COALESCE(timestamptz 'epoch' + $3::bigint * interval '1 microsecond', last_at)
 WHERE name = $1`

// fireOne fires a schedule that is due, if any but those that have fired is: the row is locked, the
// tasks are enqueued and the next firing is set in one transaction. It returns the schedule's name,
// also with the error of what it is to enqueue.
func (s *Scheduler) fireOne(ctx context.Context, fired map[string]bool) (name string, err error) {
	names, definitions := s.keys(fired)
	if len(names) == 0 {
		return "", nil
	}
	var f firings
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var due, now int64
		var paused bool
		args := []any{pq.Array(names), pq.Array(definitions), pg.Millis(pg.Bookkeeping)}
		err := tx.QueryRowContext(ctx, s.Schema.SQL(dueSQL), args...).
			Scan(&name, &due, &now, &paused, new(string), new(string))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		one := s.of(name)
		if f, err = one.firings(time.UnixMicro(due).UTC(), time.UnixMicro(now).UTC(), paused); err != nil {
			return err
		}
		if _, err := outbox.EnqueueMany(ctx, tx, one.tasks(f.at, s.Schema)); err != nil {
			return err
		}
		var last time.Time
		if len(f.at) > 0 {
			last = f.at[len(f.at)-1]
		}
		return pg.One(tx.ExecContext(ctx, s.Schema.SQL(firedSQL), name, micros(f.next), micros(last)))
	})
	if err != nil {
		return name, err
	}
	if len(f.at) > 0 {
		wake.All()
	}
	if f.why != nil {
		s.ended(name, f.why)
	}
	return name, nil
}

// tasks are what firings enqueue.
func (s *Schedule) tasks(at []time.Time, schema pg.Schema) []outbox.TaskSpec {
	out := make([]outbox.TaskSpec, len(at))
	for i, t := range at {
		options := append(slices.Clone(s.Task.Options), outbox.RunAt(t), outbox.Schema(string(schema)))
		out[i] = outbox.TaskSpec{Type: s.Task.Type, Payload: json.RawMessage(s.payload), Options: options}
	}
	return out
}

// micros is a time as the statements take it: microseconds since 1970, or NULL for none.
func micros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}
