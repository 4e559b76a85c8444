package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
)

// leasesDue is whether takeOver has something to do, but for leases of relays that have no row.
const leasesDue = `(EXISTS (SELECT 1 FROM outbox.relay l WHERE alive_until < clock_timestamp()
       AND EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id))
    OR EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.leased_until < clock_timestamp()))`

const takeOverDueSQL = `/* outbox: whether leases are to be taken over */
SELECT ` + leasesDue + `
    OR $1::boolean AND EXISTS (SELECT 1 FROM outbox.task t WHERE state = 'leased'
       AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id))`

// leasesUnseen reports whether a poll should see if leases are to be taken over. An idle relay's
// polls do, so that its heartbeat need not.
func (h *heartbeat) leasesUnseen(now time.Time) bool {
	return now.Sub(h.r.born)-time.Duration(h.leasesAt.Load()) >= takeoverInterval*7/8
}

// leasesSeen notes what a poll saw of leases.
func (h *heartbeat) leasesSeen(at time.Time, due bool) {
	if due {
		poke(h.leasesDue)
	} else {
		h.leasesAt.Store(int64(at.Sub(h.r.born)))
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

// The lock may have come after a relay that is new had taken the lease: seen from here it has a
// row.
const takeStrandedSQL = `/* outbox: take over leases of relays that have no row */
UPDATE outbox.task t SET state = 'ready', lease_token = NULL, leased_until = NULL
 WHERE task_id = ANY ($1::bigint[]) AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = t.relay_id)`

// takeOver makes the leased tasks of dead relays ready again, once this relay's own beats are
// settled.
func (h *heartbeat) takeOver(ctx context.Context) (next time.Duration, err error) {
	now, take := time.Now(), h.takeOverNow
	h.takeOverNow = false
	if !h.streak.settled(now) {
		return takeoverInterval, nil
	}
	strandedToo := now.Sub(h.strandedAt) >= reapInterval
	if !take && !strandedToo {
		// A poll that is about to come, after an interval like this one, says it again.
		seen := now.Sub(h.r.born) - time.Duration(h.leasesAt.Load())
		if wait := takeoverInterval + takeoverInterval/20 - seen; wait > 0 {
			return wait, nil
		}
	}
	if !take {
		err := h.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
			return conn.QueryRowContext(ctx, h.r.sql(takeOverDueSQL), strandedToo).Scan(&take)
		})
		if err != nil || !take {
			if err == nil && strandedToo {
				h.strandedAt = now
			}
			return takeoverInterval, err
		}
	}
	var n int64
	err = h.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		n = 0
		change := func(query string, args ...any) error {
			result, err := tx.ExecContext(ctx, h.r.sql(query), args...)
			if err == nil {
				taken, _ := result.RowsAffected()
				n += taken
			}
			return err
		}
		dead, err := texts(tx.QueryContext(ctx, h.r.sql(deadRelaysSQL), h.r.id))
		if err != nil {
			return err
		}
		if len(dead) > 0 {
			if err := change(takeOverSQL, pq.Array(dead)); err != nil {
				return err
			}
		}
		if err := change(expireSQL); err != nil || !strandedToo {
			return err
		}
		stranded, err := texts(tx.QueryContext(ctx, h.r.sql(strandedSQL)))
		if err != nil || len(stranded) == 0 {
			return err
		}
		return change(takeStrandedSQL, pq.Array(stranded))
	})
	if err == nil && strandedToo { // else it is soon tried again
		h.strandedAt = now
	}
	if err == nil && n > 0 {
		h.r.log.Warn("outbox: tasks of dead relays or with leases that ran out are ready again", "tasks", n)
		h.r.Wake()
	}
	return takeoverInterval, err
}
