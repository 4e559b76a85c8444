package relay

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/pg"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const beatSQL = `/* outbox: heartbeat */
INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types, workers, connections)
VALUES ($1::uuid, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond', $5::text[], $6, NULLIF($7::integer, 0))
ON CONFLICT (relay_id) DO UPDATE SET alive_until = EXCLUDED.alive_until, connections = EXCLUDED.connections`

const lastBeat = time.Second // that a relay waits at its end for a beat under way

// heartbeat says, on a connection of its own, that this relay lives, and takes over from relays that do not.
type heartbeat struct {
	r     *Relay
	held  pg.Dedicated
	first chan struct{} // closed by the first beat that came through
	tried chan struct{} // closed by the first that was tried

	until   atomic.Int64          // when the leases end unless a beat comes through: ns since r.born
	failure atomic.Pointer[error] // of the last beat
	ahead   atomic.Int64          // ns: PostgreSQL's clock less this process's, as the last beat saw it, if there are observers
	streak  streak

	upkeepJobs []*upkeepJob

	leasesAt    atomic.Int64  // when no lease was to be taken over: ns since r.born
	leasesDue   chan struct{} // a poll has seen some that are
	takeOverNow bool          // as it has
	strandedAt  time.Time     // when leases of relays without a row were looked for
	ranAt       time.Time     // when a task was seen to run
	heardAt     time.Time     // when it was read what became of running tasks
	sweep       keySweep
	maintenance *maintenance
}

// check is nil while this relay is known to be alive: only then it may claim.
func (h *heartbeat) check(now time.Time) error {
	if now.Sub(h.r.born) < time.Duration(h.until.Load()) {
		return nil
	}
	if err := h.failure.Load(); err != nil {
		return *err
	}
	return ErrNoHeartbeat
}

func newHeartbeat(r *Relay) *heartbeat {
	h := &heartbeat{r: r, held: pg.NewDedicated(r.conns), first: make(chan struct{}), tried: make(chan struct{}),
		leasesDue: make(chan struct{}, 1), maintenance: newMaintenance(r)}
	h.upkeepJobs = []*upkeepJob{
		{name: "take over", run: h.takeOver},
		{name: "hear", run: h.hear},
		{name: "give tokens back", run: h.giveBackTokens},
		{name: "reap", run: h.reap},
		{name: "sweep keys", run: h.sweepKeys},
		{name: "maintain", run: h.maintain},
	}
	return h
}

// run beats until stop is closed, and then signs off.
func (h *heartbeat) run(stop <-chan struct{}) {
	defer h.held.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			// A dial or statement under way may hang. A beat that is canceled may still come through, after the sign-off, where
			// the driver does not wait for its end or a pooler is in between: then the relay's row stays until it is reaped. So one that is under
			// way has a second.
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

	retries := h.r.newPace()
	var nextBeat time.Time
	for first := true; ; first = false {
		retries.Try()
		var err error
		if now := time.Now(); !now.Before(nextBeat) {
			if err = h.beat(ctx); err == nil {
				nextBeat = now.Add(heartbeatInterval)
			}
			if first {
				close(h.tried)
			}
		}
		if err == nil {
			err = h.work(ctx, nextBeat)
		}
		pause := max(0, min(takeoverInterval, time.Until(nextBeat), time.Until(h.nextUpkeepJob().next)))
		if err == nil {
			retries.OK()
		} else {
			pause = retries.Fail()
			if ctx.Err() == nil {
				h.r.log.Debug("outbox: heartbeat connection", "error", pgerr.LogText(err))
			}
		}
		select {
		case <-time.After(pause):
		case <-retries.Answered:
		case <-h.leasesDue:
			h.takeOverNow, h.upkeepJobs[0].next = true, time.Time{}
		case <-stop:
			h.signOff()
			return
		}
	}
}

// beat renews the relay's row. The lease counts from before the statement was sent.
func (h *heartbeat) beat(ctx context.Context) error {
	sent := time.Now()
	err := h.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, heartbeatInterval)
		defer cancel()
		args := []any{h.r.id, h.r.host, h.r.pid, leaseDuration.Microseconds(), pq.Array(h.r.types),
			h.r.config.Workers, h.r.db.Stats().MaxOpenConnections}
		if h.r.observed() {
			return h.beatAndRead(ctx, conn, args)
		}
		_, err := conn.ExecContext(ctx, h.r.sql(beatSQL), args...)
		return err
	})
	if err != nil {
		h.failure.Store(&err)
		return err
	}
	h.until.Store(int64(sent.Add(leaseDuration).Sub(h.r.born)))
	if h.streak.last.IsZero() {
		close(h.first) // whoever waits for it may look at until
	}
	h.streak.beat(sent)
	return nil
}

const readClock = `
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// beatAndRead is a beat that reads PostgreSQL's clock as well.
func (h *heartbeat) beatAndRead(ctx context.Context, conn *sql.Conn, args []any) error {
	var now int64
	sent := time.Now()
	if err := conn.QueryRowContext(ctx, h.r.sql(beatSQL)+readClock, args...).Scan(&now); err != nil {
		return err
	}
	h.ahead.Store(int64(time.UnixMicro(now).Sub(sent.Add(time.Since(sent) / 2))))
	return nil
}

// streak is beats that came through without a gap.
type streak struct{ first, last time.Time }

func (s *streak) beat(sent time.Time) {
	if sent.Sub(s.last) > beatGap {
		s.first = sent
	}
	s.last = sent
}

// settled reports whether this relay has beaten for as long as leases last, up to now: after an outage of the
// database all relays look dead, and they should renew first.
func (s *streak) settled(now time.Time) bool {
	return s.last.Sub(s.first) >= takeoverAfter-heartbeatInterval && now.Sub(s.first) >= takeoverAfter && now.Sub(s.last) <= beatGap
}

// watch ends the leased handlers when the heartbeat has been away for as long as leases last. It is apart from the
// beats, as those may hang.
func (h *heartbeat) watch(stop <-chan struct{}) {
	select {
	case <-h.first:
	case <-stop:
		return
	}
	for {
		left := time.Duration(h.until.Load()) - time.Since(h.r.born)
		if left <= 0 {
			if n := h.r.leases.lose(); n > 0 {
				h.r.log.Warn("outbox: no heartbeat for as long as leases last; leased handlers are stopped", "handlers", n)
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

// A relay that leaves nothing behind leaves no row; else its row says when others may take over.
const signOffSQL = `/* outbox: sign off */
DELETE FROM outbox.relay l WHERE relay_id = $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
   AND NOT EXISTS (SELECT 1 FROM outbox.running r WHERE r.relay_id = l.relay_id)`

func (h *heartbeat) signOff() {
	if h.streak.last.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for range 2 { // the end of the loop may have broken the connection behind a statement that succeeded
		err := h.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, h.r.sql(signOffSQL), h.r.id)
			return err
		})
		if err == nil {
			break
		}
	}
	_ = h.r.rates.giveBack(ctx, &h.held, true)
}

// texts reads a result of one text column.
func texts(rows *sql.Rows, err error) ([]string, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
