package relay

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

const beatSQL = `/* outbox: heartbeat */
INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
VALUES ($1::uuid, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond', $5::text[])
ON CONFLICT (relay_id) DO UPDATE SET alive_until = EXCLUDED.alive_until`

// heartbeat says, on a connection of its own, that this relay lives, and takes over from relays that do not.
type heartbeat struct {
	r     *Relay
	held  held
	first chan struct{} // closed by the first beat that came through
	tried chan struct{} // closed by the first that was tried

	until   atomic.Int64          // when the leases end unless a beat comes through: ns since r.born
	failure atomic.Pointer[error] // of the last beat
	streak  streak

	strandedAt time.Time // when leases of relays without a row were looked for
}

// check is nil while this relay is known to be alive: only then it may claim.
func (h *heartbeat) check(now time.Time) error {
	if now.Sub(h.r.born) < time.Duration(h.until.Load()) {
		return nil
	}
	if err := h.failure.Load(); err != nil {
		return *err
	}
	return errNoHeartbeat
}

var errNoHeartbeat = errors.New("relay: no heartbeat came through")

func newHeartbeat(r *Relay) *heartbeat {
	return &heartbeat{r: r, held: held{conns: r.conns}, first: make(chan struct{}), tried: make(chan struct{})}
}

// run beats until stop is closed, and then signs off.
func (h *heartbeat) run(stop <-chan struct{}) {
	defer h.held.close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel() // a dial or statement under way may hang
		case <-ctx.Done():
		}
	}()
	watch := make(chan struct{})
	defer func() { <-watch }()
	go func() {
		defer close(watch)
		h.watch(stop)
	}()

	backoff := newLoopBackoff()
	var nextBeat, nextTakeover, nextReap time.Time
	for first := true; ; first = false {
		now := time.Now()
		var err error
		if !now.Before(nextBeat) {
			if err = h.beat(ctx); err == nil {
				nextBeat = now.Add(heartbeatInterval)
			}
			if first {
				close(h.tried)
			}
		}
		if err == nil && !now.Before(nextTakeover) {
			err = h.takeOver(ctx)
			nextTakeover = now.Add(takeoverInterval)
		}
		if err == nil && !now.Before(nextReap) {
			err = h.reap(ctx)
			nextReap = now.Add(reapInterval)
		}
		pause := takeoverInterval
		if err == nil {
			backoff = newLoopBackoff()
		} else {
			pause, _ = backoff.Next()
			if ctx.Err() == nil {
				h.r.log.Debug("outbox: heartbeat connection", "error", safeText(err))
			}
		}
		select {
		case <-time.After(pause):
		case <-stop:
			h.signOff()
			return
		}
	}
}

// beat renews the relay's row. The lease counts from before the statement was sent.
func (h *heartbeat) beat(ctx context.Context) error {
	sent := time.Now()
	err := h.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, heartbeatInterval)
		defer cancel()
		_, err := conn.ExecContext(ctx, h.r.sql(beatSQL), h.r.id, h.r.host, h.r.pid, leaseDuration.Microseconds(), pq.Array(h.r.types))
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

const deadRelaysSQL = `/* outbox: lock dead relays that hold leases */
SELECT relay_id::text FROM outbox.relay l
 WHERE alive_until < clock_timestamp() AND relay_id <> $1::uuid
   AND EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
 ORDER BY relay_id LIMIT 10 FOR UPDATE SKIP LOCKED`

// The relay's id stays on the row as a mark: the task's last run was lost.
const takeOverSQL = `/* outbox: take leases over from dead relays */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND relay_id = ANY ($1::uuid[]) LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

const expireSQL = `/* outbox: end leases that ran out */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND leased_until < clock_timestamp() LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

const strandedSQL = `/* outbox: lock leases of relays that have no row */
SELECT task_id::text FROM outbox.task t WHERE state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id) LIMIT 1000 FOR UPDATE SKIP LOCKED`

// The lock may have come after a relay that is new had taken the lease: seen from here it has a row.
const takeStrandedSQL = `/* outbox: take over leases of relays that have no row */
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL
 WHERE task_id = ANY ($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id)`

// takeOver makes the leased tasks of dead relays ready again, once this relay's own beats are settled.
func (h *heartbeat) takeOver(ctx context.Context) error {
	if !h.streak.settled(time.Now()) {
		return nil
	}
	var n int64
	ctx, cancel := context.WithTimeout(ctx, maintenanceTimeout)
	defer cancel()
	err := h.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		var dead []string
		if dead, err = texts(tx.QueryContext(ctx, h.r.sql(deadRelaysSQL), h.r.id)); err != nil {
			return err
		}
		if len(dead) > 0 {
			result, err := tx.ExecContext(ctx, h.r.sql(takeOverSQL), pq.Array(dead))
			if err != nil {
				return err
			}
			n, _ = result.RowsAffected()
		}
		result, err := tx.ExecContext(ctx, h.r.sql(expireSQL))
		if err != nil {
			return err
		}
		expired, _ := result.RowsAffected()
		n += expired
		if time.Since(h.strandedAt) >= reapInterval {
			h.strandedAt = time.Now()
			stranded, err := texts(tx.QueryContext(ctx, h.r.sql(strandedSQL)))
			if err != nil {
				return err
			}
			if len(stranded) > 0 {
				if result, err = tx.ExecContext(ctx, h.r.sql(takeStrandedSQL), pq.Array(stranded)); err != nil {
					return err
				}
				taken, _ := result.RowsAffected()
				n += taken
			}
		}
		return tx.Commit()
	})
	if err == nil && n > 0 {
		h.r.log.Warn("outbox: tasks of dead relays or with leases that ran out are ready again", "tasks", n)
		h.r.Wake()
	}
	return err
}

// maintenanceTimeout bounds what shares the heartbeat's connection, so that no beat is late.
const maintenanceTimeout = 2 * time.Second

// reapInterval is how often a relay looks for what others left behind.
const reapInterval = 30 * time.Second

const reapRunsSQL = `/* outbox: reap runs of tasks that are gone */
DELETE FROM outbox.running r
 USING (SELECT task_id, token FROM outbox.running r
         WHERE (SELECT t.task_id FROM outbox.task t WHERE t.task_id = r.task_id) IS NULL
           AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = r.relay_id AND l.alive_until > clock_timestamp())
         LIMIT 1000) AS gone
 WHERE r.task_id = gone.task_id AND r.token = gone.token`

const reapRelaysSQL = `/* outbox: reap relays that died long ago */
DELETE FROM outbox.relay l WHERE alive_until < clock_timestamp() - interval '1 hour' AND relay_id <> $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)`

func (h *heartbeat) reap(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maintenanceTimeout)
	defer cancel()
	return h.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if _, err := conn.ExecContext(ctx, h.r.sql(reapRunsSQL)); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, h.r.sql(reapRelaysSQL), h.r.id); err != nil {
			return err
		}
		return h.r.unhandled.report(ctx, conn)
	})
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
	_ = h.held.do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, h.r.sql(signOffSQL), h.r.id)
		return err
	})
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
