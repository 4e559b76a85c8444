package relay

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/txoutbox/outbox/internal/pg"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

const (
	scheduleRecheck = 10 * time.Second // for what others changed: resumed, added, the server's clock
	schedulePause   = 10 * time.Millisecond
	scheduleHeld    = time.Second // most between polls while another relay holds what is due
	scheduleRest    = time.Minute // until a firing that PostgreSQL refused, or whose Next panicked, is tried again
)

// scheduler adds the schedules of this relay to the table and fires what is due. It reads no clock
// but PostgreSQL's.
type scheduler struct {
	r          *Relay
	all        []known
	registered map[string]bool
	resting    map[string]time.Duration // since r.born, until when
	other      map[string]bool          // names whose definition differs, which was logged
}

func newScheduler(r *Relay) *scheduler {
	return &scheduler{r: r, all: r.schedules, registered: map[string]bool{}, resting: map[string]time.Duration{}, other: map[string]bool{}}
}

// rest leaves a schedule alone for a while, as it cannot be fired or registered.
func (s *scheduler) rest(name string, err error) {
	s.resting[name] = time.Since(s.r.born) + scheduleRest
	if errors.Is(err, errNextPanicked) {
		s.r.log.Error("outbox: a schedule waits, as its Next panicked; it is tried again", "schedule", name, "error", pgerr.Text(err))
		return
	}
	s.r.log.Error("outbox: the task of a schedule cannot be enqueued", "schedule", name, "error", pgerr.LogText(err))
}

func (s *scheduler) rests(name string) bool { return time.Since(s.r.born) < s.resting[name] }

// run fires until the relay stops claiming, which is before stop is closed. Its timer is set to the
// next firing.
func (s *scheduler) run(<-chan struct{}) {
	ctx := s.r.ctx
	retries, held, logged := s.r.newPace(), schedulePause, false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-retries.Answered:
		case <-ctx.Done():
			return
		}
		retries.Try()
		var pause time.Duration
		err := s.register(ctx)
		if err == nil {
			pause, err = s.pass(ctx)
		}
		switch {
		case err != nil:
			pause = retries.Fail()
			switch {
			case ctx.Err() != nil:
			case pgerr.Refusal(err) && !logged:
				logged = true // once; an outage is the dispatcher's to log
				s.r.log.Error("outbox: schedules cannot be worked with", "error", pgerr.LogText(err))
			default:
				s.r.log.Debug("outbox: schedules", "error", pgerr.LogText(err))
			}
			timer.Reset(pause)
			continue
		case pause <= 0: // another relay is at it
			pause = held
			held = min(2*held, scheduleHeld)
		default:
			pause = max(min(pause, scheduleRecheck), schedulePause)
			held = schedulePause
		}
		retries.OK()
		logged = false
		timer.Reset(pause)
	}
}

// once adds the schedules and fires what is due, for RunOnce.
func (s *scheduler) once(ctx context.Context) error {
	if err := s.register(ctx); err != nil {
		return err
	}
	_, err := s.pass(ctx)
	return err
}

// pass fires each due schedule once, and returns in how long the next one is due.
func (s *scheduler) pass(ctx context.Context) (wait time.Duration, err error) {
	fired := map[string]bool{}
	for {
		fresh := make([]known, 0, len(s.all))
		for _, k := range s.all {
			if !fired[k.Name] && !s.rests(k.Name) {
				fresh = append(fresh, k)
			}
		}
		name, err := s.fireOne(ctx, fresh)
		if err != nil {
			if name == "" || pgerr.Lost(err) || pgerr.Code(err) != "" && !pgerr.Refusal(err) {
				return 0, err
			}
			s.rest(name, err)
		}
		if name == "" {
			wait, err := s.nextFiring(ctx)
			if wait <= 0 && len(fired) > 0 {
				wait = schedulePause // it goes on
			}
			return wait, err
		}
		fired[name] = true
	}
}

const dueScheduleSQL = `/* outbox: lock a schedule that is due */
SELECT s.name, (extract(epoch FROM s.next_at) * 1000000)::bigint, (extract(epoch FROM now()) * 1000000)::bigint, s.paused,
       set_config('idle_in_transaction_session_timeout', $3, true), set_config('lock_timeout', $3, true)
  FROM outbox.schedule s JOIN unnest($1::text[], $2::text[]) AS k (name, definition) ON s.name = k.name AND s.definition = k.definition
 WHERE s.next_at <= now()
 ORDER BY s.next_at LIMIT 1 FOR UPDATE OF s SKIP LOCKED`

const firedSQL = `/* outbox: set the next firing */
UPDATE outbox.schedule SET next_at = timestamptz 'epoch' + $2::bigint * interval '1 microsecond',
       last_at = COALESCE(timestamptz 'epoch' + $3::bigint * interval '1 microsecond', last_at)
 WHERE name = $1`

// fireOne fires one of the schedules if it is due: the row is locked, the tasks are enqueued and
// the next firing is set in one transaction. It returns the schedule's name, also with the error of
// what it is to enqueue.
func (s *scheduler) fireOne(ctx context.Context, of []known) (name string, err error) {
	if len(of) == 0 {
		return "", nil
	}
	names, definitions := columns(of)
	var f firings
	err = s.r.conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var due, now int64
		var paused bool
		err := tx.QueryRowContext(ctx, s.r.sql(dueScheduleSQL), pq.Array(names), pq.Array(definitions), pg.Millis(pg.Bookkeeping)).
			Scan(&name, &due, &now, &paused, new(string), new(string))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		k := named(of, name)
		if f, err = k.plan(time.UnixMicro(due).UTC(), time.UnixMicro(now).UTC(), paused); err != nil {
			return err
		}
		if _, err := outbox.EnqueueMany(ctx, tx, k.tasks(f.at, s.r.config.Schema)); err != nil {
			return err
		}
		var last time.Time
		if len(f.at) > 0 {
			last = f.at[len(f.at)-1]
		}
		return one(tx.ExecContext(ctx, s.r.sql(firedSQL), name, micros(f.next), micros(last)))
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

// ended logs that a schedule fires no more.
func (s *scheduler) ended(name string, why error) {
	if errors.Is(why, errNoNext) {
		s.r.log.Info("outbox: a schedule has ended", "schedule", name, "reason", why.Error())
		return
	}
	s.r.log.Error("outbox: a schedule was stopped, as its Next misbehaves", "schedule", name, "error", pgerr.Text(why))
}

const nextFiringSQL = `/* outbox: find the next firing */
SELECT (LEAST(extract(epoch FROM min(s.next_at) FILTER (WHERE s.definition = k.definition) - clock_timestamp()), 3e9) * 1000000)::bigint,
       COALESCE(array_agg(s.name) FILTER (WHERE s.definition <> k.definition), '{}')
  FROM outbox.schedule s JOIN unnest($1::text[], $2::text[]) AS k (name, definition) ON s.name = k.name
 WHERE s.name <> ALL ($3::text[])`

// nextFiring returns in how long the next of the schedules is due.
func (s *scheduler) nextFiring(ctx context.Context) (wait time.Duration, err error) {
	var us sql.NullInt64
	var changed, resting []string
	for name := range s.resting {
		if s.rests(name) {
			resting = append(resting, name)
		}
	}
	names, definitions := columns(s.all)
	err = s.r.conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.r.sql(nextFiringSQL), pq.Array(names), pq.Array(definitions), pq.Array(nonNil(resting))).
			Scan(&us, pq.Array(&changed))
	})
	if err != nil {
		return 0, err
	}
	for _, name := range changed {
		if !s.other[name] {
			s.other[name] = true
			s.r.log.Warn("outbox: a schedule was changed by another process; this relay does not fire it", "schedule", name)
		}
	}
	if !us.Valid {
		return scheduleRecheck, nil
	}
	return time.Duration(us.Int64) * time.Microsecond, nil
}

// tasks are what firings enqueue.
func (k *known) tasks(at []time.Time, schema string) []outbox.NewTask {
	out := make([]outbox.NewTask, len(at))
	for i, t := range at {
		options := append(k.Task.Options[:len(k.Task.Options):len(k.Task.Options)], outbox.RunAt(t), outbox.Schema(schema))
		out[i] = outbox.NewTask{Type: k.Task.Type, Payload: json.RawMessage(k.payload), Options: options}
	}
	return out
}

func columns(of []known) (names, definitions []string) {
	for _, k := range of {
		names, definitions = append(names, k.Name), append(definitions, k.definition)
	}
	return names, definitions
}

func named(of []known, name string) *known {
	for i := range of {
		if of[i].Name == name {
			return &of[i]
		}
	}
	return nil
}

// micros is a time as the statements take it: microseconds since 1970, or NULL for none.
func micros(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}
