package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Schedules that operators store (admin.Client.PutSchedule) are rows of outbox.schedule, too. Each relay
// with a parser reads them anew before it fires, at most 10 s after a change, and makes them ready outside
// of a transaction. The row says all of it: so a relay computes the first firing, and notes what is wrong.
// Nothing about one of them holds up another schedule.

// Parse makes the timing of a spec in a time zone, "" for UTC, and its text. The error says what is wrong.
type Parse func(spec, zone string) (timing interface{ Next(t time.Time) time.Time }, text string, err error)

const (
	loadEvery   = time.Second // at most: a frequent schedule fires more often
	prepareFor  = time.Second // new ones, of one load
	mostPayload = 16 << 20    // jsonb's text is longer than the one that was stored
)

const storedSQL = `/* outbox: read stored schedules */
SELECT name, spec, time_zone, task_type, payload::text, catch_up, definition FROM outbox.schedule
 WHERE stored ORDER BY name`

// stored is a row, and what this relay makes of it.
type stored struct {
	schedule Schedule
	zone     string
	wrong    error // why it does not fire
	noted    bool  // the table and the log have that
}

// load reads the stored schedules. One with the name of a schedule of this relay's code is left out. Each
// change is made ready once.
func (s *Scheduler) load(ctx context.Context) error {
	if s.Parse == nil || time.Since(s.loadedAt) < loadEvery {
		return nil
	}
	rows, err := s.readStored(ctx)
	if err != nil {
		return pgerr.Within("relay: read stored schedules", err)
	}
	s.loadedAt = time.Now()
	known := s.stored
	s.stored = map[string]*stored{}
	s.Schedules = slices.Clip(s.own)
	for _, r := range rows {
		name := r.schedule.Name
		if slices.ContainsFunc(s.own, func(one Schedule) bool { return one.Name == name }) {
			continue // it is about to take its place
		}
		if old := known[name]; old != nil && old.schedule.definition == r.schedule.definition {
			r = old
		} else if time.Since(s.loadedAt) > prepareFor {
			continue // it comes with the next load
		} else {
			r.prepare(s.Parse)
			delete(s.rests, name)
		}
		s.stored[name] = r
		if r.wrong == nil {
			s.Schedules = append(s.Schedules, r.schedule)
		}
		s.note(ctx, r)
	}
	return nil
}

func (s *Scheduler) readStored(ctx context.Context) (all []*stored, err error) {
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		all = nil
		rows, err := tx.QueryContext(ctx, s.Schema.SQL(storedSQL))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, payload := &stored{schedule: Schedule{stored: true}}, ""
			one := &r.schedule
			if err := rows.Scan(&one.Name, &one.Spec, &r.zone, &one.Task.Type, &payload, &one.CatchUp,
				&one.definition); err != nil {
				return err
			}
			one.Task.Payload = json.RawMessage(payload)
			one.Task.Options = []outbox.Option{outbox.MaxPayload(mostPayload)}
			all = append(all, r)
		}
		return rows.Err()
	})
	return all, err
}

// prepare makes the schedule ready, or says what is wrong. It keeps the definition of its row: others may
// compute theirs in another way. The app's parser, like Next, has 5 s.
func (r *stored) prepare(parse Parse) {
	one, definition := &r.schedule, r.schedule.definition
	type parsed struct {
		timing interface{ Next(t time.Time) time.Time }
		text   string
		err    error
	}
	answer := make(chan parsed, 1)
	spec := one.Spec
	if err := within(func() {
		timing, text, err := parse(spec, r.zone)
		answer <- parsed{timing, text, err}
	}); err != nil {
		r.wrong = errors.New("ParseSchedule: " + pgerr.Text(err))
		return
	}
	p := <-answer
	if r.wrong = p.err; r.wrong != nil {
		return
	}
	one.Timing, one.Spec = p.timing, p.text
	r.wrong = errors.Join(one.Prepare()...)
	one.definition = definition
}

// A row that somebody holds is noted later.
const wrongSQL = `/* outbox: note what is wrong with a stored schedule */
UPDATE outbox.schedule SET wrong = $3 WHERE name = (
  SELECT name FROM outbox.schedule WHERE name = $1 AND definition = $2 AND stored FOR UPDATE SKIP LOCKED)`

// note writes what this relay makes of a schedule, once: where relays differ, the last one that began counts.
func (s *Scheduler) note(ctx context.Context, r *stored) {
	if r.noted {
		return
	}
	name := r.schedule.Name
	if r.wrong != nil {
		s.Log.Warn("outbox: a stored schedule cannot be fired", "schedule", name, "error", pgerr.LogText(r.wrong))
	}
	err := s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		text := sql.NullString{Valid: r.wrong != nil}
		if text.Valid {
			text.String = pgerr.Text(r.wrong)
		}
		_, err := tx.ExecContext(ctx, s.Schema.SQL(wrongSQL), name, r.schedule.definition, text)
		return err
	})
	if r.noted = true; err != nil {
		s.Log.Debug("outbox: schedules", "schedule", name, "error", pgerr.LogText(err))
	}
}

const lockNewSQL = `/* outbox: lock a stored schedule that is new to this relay */
SELECT next_at IS NULL OR timing NOT IN ('', $3) FROM outbox.schedule
 WHERE name = $1 AND definition = $2 AND stored FOR UPDATE SKIP LOCKED`

const startSQL = `/* outbox: set the first firing of a stored schedule */
UPDATE outbox.schedule SET timing = $2,
       next_at = CASE WHEN $3 THEN timestamptz 'epoch' + $4::bigint * interval '1 microsecond' ELSE next_at END
 WHERE name = $1`

// start computes the first firing of a stored schedule that has none, or whose spec the app understands in
// another way by now. A row that somebody holds is not done.
func (s *Scheduler) start(ctx context.Context, one *Schedule) (done bool, err error) {
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var anew bool
		err := tx.QueryRowContext(ctx, s.Schema.SQL(lockNewSQL), one.Name, one.definition, one.timing).Scan(&anew)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var f firings
		if anew {
			var from int64
			if err := tx.QueryRowContext(ctx, s.Schema.SQL(fromSQL), one.Name).Scan(&from); err != nil {
				return err
			}
			if f, err = one.first(time.UnixMicro(from).UTC()); err != nil {
				return err
			}
			if f.why != nil {
				s.ended(one.Name, f.why)
			}
		}
		done = true
		_, err = tx.ExecContext(ctx, s.Schema.SQL(startSQL), one.Name, one.timing, anew, micros(f.next))
		return err
	})
	return done && err == nil, err
}
