package upkeep

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// A batch is kept for as long as it has a task: each of them was begun. Rows of living relays go
// too: a lost connection may commit its row after its relay has forgotten the run.
const reapRunsSQL = `/* outbox: reap runs of tasks that are gone */
DELETE FROM outbox.running r
 USING (SELECT task_id, token FROM outbox.running r
         WHERE (SELECT t.task_id FROM outbox.task t
                 WHERE t.task_id = ANY (COALESCE(r.task_ids, ARRAY[r.task_id])) LIMIT 1) IS NULL
         LIMIT 1000) AS gone
 WHERE r.task_id = gone.task_id AND r.token = gone.token AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// An hour after the last of its tasks was taken over.
const reapRelaysSQL = `/* outbox: reap relays that died long ago */
DELETE FROM outbox.relay l
 WHERE alive_until < clock_timestamp() AND taken_over_at < clock_timestamp() - interval '1 hour'
   AND relay_id <> $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
RETURNING ` + pg.CommitAsync

// reap is the job that deletes runs of tasks that are gone, and relays that died long ago.
func (p *Params) reap(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	return ReapInterval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if _, err := conn.ExecContext(ctx, p.Schema.SQL(reapRunsSQL)); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, p.Schema.SQL(reapRelaysSQL), p.RelayID)
		return err
	})
}
