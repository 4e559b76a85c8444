package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
)

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
func (h *heartbeat) takeOver(ctx context.Context) (next time.Duration, err error) {
	if !h.streak.settled(time.Now()) {
		return takeoverInterval, nil
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
		if err := change(expireSQL); err != nil || time.Since(h.strandedAt) < reapInterval {
			return err
		}
		h.strandedAt = time.Now()
		stranded, err := texts(tx.QueryContext(ctx, h.r.sql(strandedSQL)))
		if err != nil || len(stranded) == 0 {
			return err
		}
		return change(takeStrandedSQL, pq.Array(stranded))
	})
	if err == nil && n > 0 {
		h.r.log.Warn("outbox: tasks of dead relays or with leases that ran out are ready again", "tasks", n)
		h.r.Wake()
	}
	return takeoverInterval, err
}
