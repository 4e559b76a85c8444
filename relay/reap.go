package relay

import (
	"context"
	"database/sql"
	"time"
)

// reapInterval is how often a relay deletes runs and relays that nothing needs any more.
const reapInterval = 30 * time.Second

// A batch is kept for as long as it has a task: each of them was begun. Rows of living relays go
// too: a lost connection may commit its row after its relay has forgotten the run.
const reapRunsSQL = `/* outbox: reap runs of tasks that are gone */
DELETE FROM outbox.running r
 USING (SELECT task_id, token FROM outbox.running r
         WHERE (SELECT t.task_id FROM outbox.task t WHERE t.task_id = ANY (COALESCE(r.task_ids, ARRAY[r.task_id])) LIMIT 1) IS NULL
         LIMIT 1000) AS gone
 WHERE r.task_id = gone.task_id AND r.token = gone.token`

const reapRelaysSQL = `/* outbox: reap relays that died long ago */
DELETE FROM outbox.relay l WHERE alive_until < clock_timestamp() - interval '1 hour' AND relay_id <> $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)`

// reap deletes what nobody needs any more, and looks after what all relays share.
func (h *heartbeat) reap(ctx context.Context) (next time.Duration, err error) {
	return reapInterval, h.held.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		if _, err := conn.ExecContext(ctx, h.r.sql(reapRunsSQL)); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, h.r.sql(reapRelaysSQL), h.r.id); err != nil {
			return err
		}
		if err := h.r.storeLimits(ctx, conn, true); err != nil {
			return err
		}
		return h.r.unhandled.report(ctx, conn)
	})
}
