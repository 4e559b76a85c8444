package upkeep

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/tail"
)

// CheckRows is the name of the job that looks whether the relay sees its rows.
const CheckRows = "check rows"

// lastBeat is for how long a relay waits at its end for a beat under way.
const lastBeat = time.Second

// ErrNoHeartbeat: no beat came through, at the start or for LeaseDuration.
var ErrNoHeartbeat = errors.New("relay: no heartbeat came through")

// Heartbeat says, on a connection of its own, that its relay lives, and does the relay's upkeep
// between two beats. Alive, LeaseEnd and Ahead are safe for concurrent use.
type Heartbeat struct {
	Params
	First chan struct{} // closed by the first beat that came through
	Tried chan struct{} // closed by the first that was tried

	on     pg.Dedicated
	jobs   jobs
	streak streak

	refused    bool  // PostgreSQL has refused the last beat
	aliveUntil int64 // of the relay's row, as the last beat wrote it; µs since 1970

	end     atomic.Pointer[time.Time] // when the leases end unless a beat comes through
	failure atomic.Pointer[error]     // of the last beat, or why the next one waits
	ahead   atomic.Int64              // ns: PostgreSQL's clock less this process's, as the last beat saw it
}

// New returns the heartbeat of one run of a relay.
func New(p Params) *Heartbeat {
	h := &Heartbeat{Params: p, First: make(chan struct{}), Tried: make(chan struct{})}
	h.on = pg.NewDedicated(p.Pool)
	all := []Job{{"take over", (&takeover{Params: p, streak: &h.streak}).run}} // at the start in this order
	h.jobs = newJobs(p.Now, p.Log, p.Refused, append(append(all, p.Jobs...),
		Job{"reap", h.reap},
		Job{"report unhandled types", h.reportUnhandled},
		Job{"sweep keys", (&keySweep{schema: p.Schema}).run},
		Job{"maintain", (&sharedJobs{Params: p, rest: map[string]time.Time{}, refused: map[string]error{}}).run},
	))
	return h
}

// Do does a part of the job of that name, due or not, and returns for how long the job rests then.
// The error is that of a lost connection.
func (h *Heartbeat) Do(ctx context.Context, name string) (rest time.Duration, err error) {
	return h.jobs.doNamed(ctx, &h.on, name)
}

// Close gives the connection back if Run was not called.
func (h *Heartbeat) Close() { h.on.Close() }

// Alive is nil while this relay is known to be alive: only then it may claim. Else it is the error
// of the last beat, pg.ErrPoolBusy or ErrNoHeartbeat.
func (h *Heartbeat) Alive(now time.Time) error {
	if now.Before(h.LeaseEnd()) {
		return nil
	}
	last := h.failure.Load()
	if err := h.Pool.Busy(); err != nil { // the next beat may wait for it
		if last == nil || pgerr.Lost(*last) || errors.Is(*last, pg.ErrPoolBusy) {
			h.failure.CompareAndSwap(last, &err) // also once it has got its connection, until it came through
		}
		return err
	}
	if last != nil {
		return *last
	}
	return ErrNoHeartbeat
}

// LeaseEnd is when the relay's leases end unless a beat comes through; zero if none has.
func (h *Heartbeat) LeaseEnd() time.Time {
	if end := h.end.Load(); end != nil {
		return *end
	}
	return time.Time{}
}

// Unbroken is since when beats come through in the same database: an outage, a step of the server's
// clock or a restore begins a new time. It is for jobs.
func (h *Heartbeat) Unbroken() time.Time { return h.streak.first }

// Ahead is PostgreSQL's clock less this process's, as the last beat saw it.
func (h *Heartbeat) Ahead() time.Duration { return time.Duration(h.ahead.Load()) }

// beatSQL renews the relay's row, and returns PostgreSQL's clock, until when the relay was alive
// before and is now, for whom it tells what it does, and the id of the database. In a copy it returns
// no row. A relay without the right to know who looks does all else.
const beatSQL = `/* outbox: heartbeat */
INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, workers, connections, schedules,
                          limits, parses, tells)
SELECT $1::uuid, $2::text, $3::integer, clock_timestamp() + $4::bigint * interval '1 microsecond', $5::text[],
       $6::integer, NULLIF($7::integer, 0), $8::jsonb, $10::jsonb, $11, true
 WHERE NOT EXISTS (SELECT FROM outbox.origin_state($9) s WHERE s.refused)
ON CONFLICT (relay_id) DO UPDATE
   SET alive_until = EXCLUDED.alive_until, connections = EXCLUDED.connections, taken_over_at = NULL
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
          (SELECT (extract(epoch FROM l.alive_until) * 1000000)::bigint FROM outbox.relay l
            WHERE l.relay_id = $1::uuid),
          (extract(epoch FROM alive_until) * 1000000)::bigint,
          CASE WHEN has_sequence_privilege('outbox.tail', 'SELECT')
               THEN pg_sequence_last_value('outbox.tail'::regclass) END,
          COALESCE((SELECT database_id::text FROM outbox.identity), ''), ` + pg.CommitAsync

// Run beats until stop is closed, and then signs off.
func (h *Heartbeat) Run(stop <-chan struct{}) {
	defer h.on.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			// A dial or statement under way may hang. A beat that is canceled may still come
			// through after the sign-off, behind a pooler for one: then the relay's row stays until
			// it is reaped. So one that is under way has a second.
			select {
			case <-time.After(lastBeat):
				cancel()
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}()
	watch := make(chan struct{})
	defer func() { <-watch }()
	go func() {
		defer close(watch)
		h.watch(stop)
	}()

	retries := &h.Pace
	var nextBeat time.Time
	for first := true; ; first = false {
		retries.Try()
		var err error
		if now := h.Now(); !now.Before(nextBeat) {
			if err = h.Beat(ctx); err == nil {
				nextBeat = now.Add(Interval)
			} else if pgerr.Code(err) == "42501" {
				_, _ = h.jobs.doNamed(ctx, &h.on, CheckRows) // it may be why, and the jobs wait for a beat
			}
			h.tellRefusal(ctx, err)
			if first {
				close(h.Tried)
			}
		}
		if err == nil {
			err = h.jobs.work(ctx, &h.on, nextBeat)
		}
		pause := max(0, min(TakeoverInterval, nextBeat.Sub(h.Now()), h.jobs.next().at.Sub(h.Now())))
		if err == nil {
			retries.OK()
		} else {
			pause = retries.Fail()
			if ctx.Err() == nil {
				h.Log.Debug("outbox: heartbeat connection", "error", pgerr.LogText(err))
			}
		}
		select {
		case <-time.After(pause):
		case <-retries.Answered:
		case <-stop:
			h.SignOff()
			return
		}
	}
}

// Beat renews the relay's row. The lease counts from before the statement was sent.
func (h *Heartbeat) Beat(ctx context.Context) error {
	sent, ahead, copied := h.Now(), time.Duration(0), false
	var before sql.NullInt64
	var aliveUntil int64
	err := h.on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		ctx, cancel := context.WithTimeout(ctx, Interval)
		defer cancel()
		args := []any{h.RelayID, h.Host, h.PID, LeaseDuration.Microseconds(), pq.Array(h.Types), h.Workers,
			h.Pool.MaxConns(), h.Schedules, h.Environment, h.Limits, h.Parses}
		var now int64
		var lookedUntil sql.NullInt64
		var databaseID string
		sent := time.Now()
		err := conn.QueryRowContext(ctx, h.Schema.SQL(beatSQL), args...).
			Scan(&now, &before, &aliveUntil, &lookedUntil, &databaseID, new(string))
		if errors.Is(err, sql.ErrNoRows) {
			copied = true
			return nil
		}
		if err != nil {
			return err
		}
		h.Identified(databaseID)
		h.Looked(tail.Left(lookedUntil.Int64, time.UnixMicro(now)))
		ahead = time.UnixMicro(now).Sub(sent.Add(time.Since(sent) / 2))
		return nil
	})
	if err == nil && copied {
		err = h.copied(ctx)
	}
	if err != nil {
		h.failure.Store(&err)
		return err
	}
	restored := before.Int64 < h.aliveUntil
	h.aliveUntil = aliveUntil
	h.failure.Store(nil)
	h.ahead.Store(int64(ahead))
	end := sent.Add(LeaseDuration)
	h.end.Store(&end)
	if h.streak.last.IsZero() {
		close(h.First) // after the end is stored, which a waiter may read
	}
	h.streak.beat(sent, ahead, restored)
	return nil
}

// tellRefusal tells that PostgreSQL refuses the beat, or no more.
func (h *Heartbeat) tellRefusal(ctx context.Context, err error) {
	switch {
	case pgerr.Refusal(err):
		h.refused = true
		err, _ = h.Refused(ctx, &h.on, "heartbeat", err)
		h.failure.Store(&err)
	case err == nil && h.refused:
		h.refused = false
		_, _ = h.Refused(ctx, &h.on, "heartbeat", nil)
	}
}

// copied tells that the database is a copy, as a beat found. The error is never nil.
func (h *Heartbeat) copied(ctx context.Context) error {
	var copied error
	err := h.on.Do(ctx, func(ctx context.Context, conn pg.Querier) (err error) {
		s, err := origin.Look(ctx, conn, h.Schema, h.Environment)
		copied = s.Err(h.Environment)
		return err
	})
	switch {
	case err != nil:
		return err
	case copied == nil:
		return ErrNoHeartbeat // it was adopted meanwhile
	}
	h.Copied(copied)
	return copied
}

// watch ends the leased handlers when the heartbeat has been away for as long as leases last. It is
// apart from the beats, as those may hang.
func (h *Heartbeat) watch(stop <-chan struct{}) {
	select {
	case <-h.First:
	case <-stop:
		return
	}
	for {
		left := h.LeaseEnd().Sub(h.Now())
		if left <= 0 {
			if n := h.Lost(); n > 0 {
				h.Log.Warn("outbox: no heartbeat for as long as leases last; leased handlers are stopped", "handlers", n)
			}
			left = time.Second
		}
		select {
		case <-time.After(left):
		case <-stop:
			return
		}
	}
}

// signOffSQL: a relay that leaves nothing behind leaves no row; else its row says when others may
// take over.
const signOffSQL = `/* outbox: sign off */
DELETE FROM outbox.relay l WHERE relay_id = $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
   AND NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.relay_id = l.relay_id)
RETURNING ` + pg.CommitAsync

// SignOff deletes the row of a relay that has beaten.
func (h *Heartbeat) SignOff() {
	if h.streak.last.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for range 2 { // the end of the loop may have broken the connection behind a statement that succeeded
		err := h.on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
			_, err := conn.ExecContext(ctx, h.Schema.SQL(signOffSQL), h.RelayID)
			return err
		})
		if err == nil {
			break
		}
	}
	h.Last(ctx, &h.on)
}

// streak is beats that came through without a gap, without a step of the server's clock, and in the
// same database.
type streak struct {
	first, last time.Time
	ahead       time.Duration // of the server's clock, as the last beat saw it
}

// beat notes a beat. restored: the database has lost the beat before, as all relays' latest ones.
func (s *streak) beat(sent time.Time, ahead time.Duration, restored bool) {
	if restored || sent.Sub(s.last) > beatGap {
		s.first = sent
	}
	s.stepped(sent, ahead)
	s.last, s.ahead = sent, ahead
}

// stepped reports whether the server's clock, or this process's, has been set since the last beat.
// All relays look dead then, or alive for long, until they renew: the streak begins anew.
func (s *streak) stepped(now time.Time, ahead time.Duration) bool {
	if (ahead - s.ahead).Abs() < Interval {
		return false
	}
	s.first = now
	return true
}

// settled reports whether this relay has beaten for as long as leases last, up to now: after an
// outage of the database all relays look dead, and they should renew first.
func (s *streak) settled(now time.Time) bool {
	return s.last.Sub(s.first) >= takeoverAfter-Interval && now.Sub(s.first) >= takeoverAfter && now.Sub(s.last) <= beatGap
}
