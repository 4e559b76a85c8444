package upkeep

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// LeasesDue is whether takeOver has something to do, but for leases of relays that have no row.
const LeasesDue = `(EXISTS (SELECT 1 FROM outbox.relay l WHERE alive_until < clock_timestamp()
       AND EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id))
    OR EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.leased_until < clock_timestamp()))`

const TakeOverDueSQL = `/* outbox: whether leases are to be taken over */
SELECT ` + LeasesDue + `
    OR $1::boolean AND EXISTS (SELECT 1 FROM outbox.task t WHERE state = 'leased'
       AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id))`

// leasesSeen is what polls and jobs have seen of leases that are to be taken over.
type leasesSeen struct {
	none     atomic.Pointer[time.Time] // when none was to be taken over
	due      chan struct{}             // a poll has seen some that are
	takeOver bool                      // as it has
}

// since is how long ago it was seen that none was to be taken over.
func (l *leasesSeen) since(now time.Time) time.Duration {
	if at := l.none.Load(); at != nil {
		return now.Sub(*at)
	}
	return time.Hour
}

// LeasesUnseen reports whether a poll should see if leases are to be taken over. An idle relay's
// polls do, so that its heartbeat need not.
func (h *Heartbeat) LeasesUnseen(now time.Time) bool {
	return h.leases.since(now) >= TakeoverInterval*7/8
}

// LeasesSeen notes what a poll saw of leases.
func (h *Heartbeat) LeasesSeen(at time.Time, due bool) {
	if !due {
		h.leases.none.Store(&at)
		return
	}
	select {
	case h.leases.due <- struct{}{}:
	default:
	}
}

const DeadRelaysSQL = `/* outbox: lock dead relays that hold leases */
SELECT relay_id::text FROM outbox.relay l
 WHERE alive_until < clock_timestamp() AND relay_id <> $1::uuid
   AND EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
 ORDER BY relay_id LIMIT 10 FOR UPDATE SKIP LOCKED`

// The relay's id stays on the row as a mark: the task's last run was lost.
const TakeOverSQL = `/* outbox: take leases over from dead relays */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND relay_id = ANY ($1::uuid[]) LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

const ExpireSQL = `/* outbox: end leases that ran out */
WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'leased' AND leased_until < clock_timestamp() LIMIT 1000 FOR UPDATE SKIP LOCKED)
UPDATE outbox.task t SET state = 'ready', relay_id = NULL, lease_token = NULL, leased_until = NULL
 WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c))`

const StrandedSQL = `/* outbox: lock leases of relays that have no row */
SELECT task_id::text FROM outbox.task t WHERE state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id) LIMIT 1000 FOR UPDATE SKIP LOCKED`

// The lock may have come after a relay that is new had taken the lease: seen from here it has a
// row.
const TakeStrandedSQL = `/* outbox: take over leases of relays that have no row */
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL
 WHERE task_id = ANY ($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id)`

// takeOver makes the leased tasks of dead relays ready again, once this relay's own beats are
// settled.
func (h *Heartbeat) takeOver(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	now, take := h.Now(), h.leases.takeOver
	h.leases.takeOver = false
	if !h.streak.settled(now) {
		return TakeoverInterval, nil
	}
	strandedToo := now.Sub(h.strandedAt) >= ReapInterval
	if !take && !strandedToo {
		// A poll that is about to come, after an interval like this one, says it again.
		if wait := TakeoverInterval + TakeoverInterval/20 - h.leases.since(now); wait > 0 {
			return wait, nil
		}
	}
	if !take {
		err := on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return conn.QueryRowContext(ctx, h.Schema.SQL(TakeOverDueSQL), strandedToo).Scan(&take)
		})
		if err != nil || !take {
			if err == nil && strandedToo {
				h.strandedAt = now
			}
			return TakeoverInterval, err
		}
	}
	var n int64
	err = h.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		n = 0
		change := func(query string, args ...any) error {
			result, err := tx.ExecContext(ctx, h.Schema.SQL(query), args...)
			if err == nil {
				taken, _ := result.RowsAffected()
				n += taken
			}
			return err
		}
		dead, err := pg.Texts(tx.QueryContext(ctx, h.Schema.SQL(DeadRelaysSQL), h.RelayID))
		if err != nil {
			return err
		}
		if len(dead) > 0 {
			if err := change(TakeOverSQL, pq.Array(dead)); err != nil {
				return err
			}
		}
		if err := change(ExpireSQL); err != nil || !strandedToo {
			return err
		}
		stranded, err := pg.Texts(tx.QueryContext(ctx, h.Schema.SQL(StrandedSQL)))
		if err != nil || len(stranded) == 0 {
			return err
		}
		return change(TakeStrandedSQL, pq.Array(stranded))
	})
	if err == nil && strandedToo { // else it is soon tried again
		h.strandedAt = now
	}
	if err == nil && n > 0 {
		h.Log.Warn("outbox: tasks of dead relays or with leases that ran out are ready again", "tasks", n)
		h.Ready()
	}
	return TakeoverInterval, err
}
