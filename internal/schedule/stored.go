package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// Schedules that operators store (admin.Client.PutSchedule) are rows of outbox.schedule, too. Each relay
// with a parser reads them anew before it fires, at most 10 s after a change. The row says all of it: so a
// relay computes the first firing, and never writes the rest.

// Parse makes the timing of a spec in a time zone, "" for UTC, and its text. The error says what is wrong.
type Parse func(spec, zone string) (timing interface{ Next(t time.Time) time.Time }, text string, err error)

const storedSQL = `/* outbox: read stored schedules */
SELECT name, spec, time_zone, task_type, payload::text, catch_up, definition, wrong FROM outbox.schedule
 WHERE stored ORDER BY name`

const wrongSQL = `/* outbox: note what is wrong with a stored schedule */
UPDATE outbox.schedule SET wrong = $3 WHERE name = $1 AND definition = $2 AND wrong IS DISTINCT FROM $3`

// loadEvery is how often stored schedules are read at most: a frequent schedule fires more often.
const loadEvery = time.Second

// load reads the stored schedules, and notes what is wrong with one. One with the name of a schedule of this
// relay's code is left out.
func (s *Scheduler) load(ctx context.Context) error {
	if s.Parse == nil || time.Since(s.loadedAt) < loadEvery {
		return nil
	}
	s.loadedAt = time.Now()
	return s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		rows, err := s.readStored(ctx, tx)
		if err != nil {
			return pgerr.Within("relay: read stored schedules", err)
		}
		s.Schedules = slices.Clip(s.own)
		for _, r := range rows {
			if slices.ContainsFunc(s.own, func(one Schedule) bool { return one.Name == r.schedule.Name }) {
				s.warnOnce(r, "outbox: a stored schedule has the name of one in this relay's Config, which takes its place", nil)
				continue
			}
			wrong := r.prepare(s.Parse)
			if wrong == nil {
				s.Schedules = append(s.Schedules, r.schedule)
			} else {
				s.warnOnce(r, "outbox: a stored schedule cannot be fired", wrong)
			}
			if text := textOf(wrong); text != r.wrong {
				if _, err := tx.ExecContext(ctx, s.Schema.SQL(wrongSQL), r.schedule.Name, r.schedule.definition, text); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// textOf is the text of what is wrong, for the table.
func textOf(wrong error) sql.NullString {
	if wrong == nil {
		return sql.NullString{}
	}
	return sql.NullString{String: pgerr.Text(wrong), Valid: true}
}

// stored is a row.
type stored struct {
	schedule Schedule
	zone     string
	wrong    sql.NullString
}

func (s *Scheduler) readStored(ctx context.Context, tx *sql.Tx) (all []stored, err error) {
	rows, err := tx.QueryContext(ctx, s.Schema.SQL(storedSQL))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r := stored{schedule: Schedule{stored: true}}
		one := &r.schedule
		var payload string
		if err := rows.Scan(&one.Name, &one.Spec, &r.zone, &one.Task.Type, &payload, &one.CatchUp, &one.definition,
			&r.wrong); err != nil {
			return nil, err
		}
		one.Task.Payload = json.RawMessage(payload)
		all = append(all, r)
	}
	return all, rows.Err()
}

// prepare makes the schedule ready. It has the definition of its row: others may compute theirs in another
// way.
func (r *stored) prepare(parse Parse) error {
	one, definition := &r.schedule, r.schedule.definition
	timing, text, err := parse(one.Spec, r.zone)
	if err != nil {
		return err
	}
	one.Timing, one.Spec = timing, text
	err = errors.Join(one.Prepare()...)
	one.definition = definition
	return err
}

const startSQL = `/* outbox: set the first firing of a stored schedule */
UPDATE outbox.schedule SET next_at = timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
 WHERE name = $1 AND definition = $2 AND stored AND next_at IS NULL`

// start computes the first firing of a stored schedule that has none.
func (s *Scheduler) start(ctx context.Context, one *Schedule) error {
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
		_, err = tx.ExecContext(ctx, s.Schema.SQL(startSQL), one.Name, one.definition, micros(f.next))
		return err
	})
}

// warnOnce logs what is not fired of the stored schedules, once for each change of one.
func (s *Scheduler) warnOnce(r stored, text string, wrong error) {
	name, definition := r.schedule.Name, r.schedule.definition
	if s.warned[name] == definition {
		return
	}
	s.warned[name] = definition
	attrs := []any{"schedule", name}
	if wrong != nil {
		attrs = append(attrs, "error", pgerr.LogText(wrong))
	}
	s.Log.Warn(text, attrs...)
}
