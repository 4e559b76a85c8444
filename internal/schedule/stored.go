package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Schedules that operators store (admin.Client.PutSchedule) are rows of outbox.schedule, too. Each relay
// with a parser reads them anew before it fires, at most 10 s after a change, and makes them ready outside
// of a transaction. The row says all of it: so a relay computes the first firing, and notes what is wrong.
// Nothing about one of them holds up another schedule.

// Parse makes the timing of a spec in a time zone, "" for UTC, and its text. The error says what is wrong.
type Parse func(spec, zone string) (timing Timing, text string, err error)

const (
	loadEvery   = time.Second // at most: a frequent schedule fires more often
	prepareFor  = time.Second // new ones, of one load
	mostPayload = 16 << 20    // jsonb's text is longer than the one that was stored
)

// The definition of one that a relay of before migration 8 has taken for its own is not of put_schedule.
const storedSQL = `/* outbox: list stored schedules */
SELECT name, definition FROM outbox.schedule WHERE stored AND definition LIKE 'stored %' ORDER BY name`

const readSQL = `/* outbox: read a stored schedule */
SELECT spec, time_zone, task_type, payload::text, catch_up FROM outbox.schedule
 WHERE name = $1 AND definition = $2 AND stored`

// stored is a row, and what this relay makes of it.
type stored struct {
	schedule Schedule
	zone     string
	wrong    error // why it does not fire
	logged   bool
	noted    bool // the table has what is wrong, or that nothing is
}

// load reads the stored schedules. One with the name of a schedule of this relay's code is left out. Each
// change is read and made ready once.
func (s *Scheduler) load(ctx context.Context) error {
	if s.Parse == nil || time.Since(s.loadedAt) < loadEvery && !s.unread {
		return nil
	}
	rows, err := s.listStored(ctx)
	if err != nil {
		return pgerr.Within("relay: list stored schedules", err)
	}
	s.loadedAt, s.unread = time.Now(), false
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
			s.unread = true
			continue
		} else if err := s.read(ctx, r); errors.Is(err, sql.ErrNoRows) {
			s.unread = true
			continue
		} else if ofSchedule(err) {
			r.wrong = err
		} else if err != nil {
			return pgerr.Within(fmt.Sprintf("relay: read the stored schedule %q", name), err)
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

func (s *Scheduler) listStored(ctx context.Context) (all []*stored, err error) {
	err = s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		all = nil
		rows, err := tx.QueryContext(ctx, s.Schema.SQL(storedSQL))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r := &stored{schedule: Schedule{stored: true}}
			if err := rows.Scan(&r.schedule.Name, &r.schedule.definition); err != nil {
				return err
			}
			all = append(all, r)
		}
		return rows.Err()
	})
	return all, err
}

// read fills the schedule. The error is sql.ErrNoRows if it has changed meanwhile.
func (s *Scheduler) read(ctx context.Context, r *stored) error {
	return s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		one, payload := &r.schedule, ""
		err := tx.QueryRowContext(ctx, s.Schema.SQL(readSQL), one.Name, one.definition).
			Scan(&one.Spec, &r.zone, &one.Task.Type, &payload, &one.CatchUp)
		one.Task.Payload = json.RawMessage(payload)
		one.Task.Options = []outbox.Option{outbox.MaxPayload(mostPayload)}
		return err
	})
}

// prepare makes the schedule ready, or says what is wrong. It keeps the definition of its row: others may
// compute theirs in another way. The app's parser, like Next, has 5 s.
func (r *stored) prepare(parse Parse) {
	one, definition := &r.schedule, r.schedule.definition
	type parsed struct {
		timing Timing
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

// A row that somebody holds is noted later. Whoever fires it notes that nothing is wrong.
const wrongSQL = `/* outbox: note what is wrong with a stored schedule */
UPDATE outbox.schedule SET wrong = $3 WHERE name = (
  SELECT name FROM outbox.schedule WHERE name = $1 AND definition = $2 AND stored FOR UPDATE SKIP LOCKED)`

// note writes what this relay makes of a schedule, once: where relays differ, the last one that began counts.
func (s *Scheduler) note(ctx context.Context, r *stored) {
	if r.noted {
		return
	}
	name := r.schedule.Name
	if r.wrong != nil && !r.logged {
		r.logged = true
		s.Log.Warn("outbox: a stored schedule cannot be fired", "schedule", name, "error", pgerr.LogText(r.wrong))
	}
	err := s.Pool.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		text := sql.NullString{Valid: r.wrong != nil}
		if text.Valid {
			text.String = pgerr.Text(r.wrong)
		}
		return pg.One(tx.ExecContext(ctx, s.Schema.SQL(wrongSQL), name, r.schedule.definition, text))
	})
	if r.noted = err == nil; err != nil {
		s.Log.Debug("outbox: schedules", "schedule", name, "error", pgerr.LogText(err))
	}
}

const lockNewSQL = `/* outbox: lock a stored schedule that is new to this relay */
SELECT next_at IS NULL OR timing NOT IN ('', $3) FROM outbox.schedule
 WHERE name = $1 AND definition = $2 AND stored FOR UPDATE SKIP LOCKED`

const startSQL = `/* outbox: set the first firing of a stored schedule */
UPDATE outbox.schedule SET timing = $2, wrong = CASE WHEN last_at IS NULL THEN $5 END,
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
		var never sql.NullString
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
				never = sql.NullString{Valid: true, String: f.why.Error()}
			}
		}
		done = true
		_, err = tx.ExecContext(ctx, s.Schema.SQL(startSQL), one.Name, one.timing, anew, micros(f.next), never)
		return err
	})
	return done && err == nil, err
}
