package upkeep

import (
	"context"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// One hop of the index for each type, however many tasks it has.
const unhandledSQL = `/* outbox: types that no living relay has a handler for */
WITH RECURSIVE ready AS (
  (SELECT task_type FROM outbox.task WHERE state = 'ready' ORDER BY task_type LIMIT 1)
  UNION ALL
  SELECT (SELECT t.task_type FROM outbox.task t WHERE t.state = 'ready' AND t.task_type > ready.task_type
           ORDER BY t.task_type LIMIT 1)
    FROM ready WHERE ready.task_type IS NOT NULL),
scheduled AS (
  (SELECT task_type FROM outbox.task WHERE state = 'scheduled' ORDER BY task_type LIMIT 1)
  UNION ALL
  SELECT (SELECT t.task_type FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type > scheduled.task_type
           ORDER BY t.task_type LIMIT 1)
    FROM scheduled WHERE scheduled.task_type IS NOT NULL),
unhandled AS (
  SELECT task_type FROM (SELECT task_type FROM ready UNION SELECT task_type FROM scheduled) AS known
   WHERE task_type IS NOT NULL AND task_type <> ALL ($1::text[])
     AND NOT EXISTS (SELECT 1 FROM outbox.relay l
                      WHERE l.alive_until > clock_timestamp() AND known.task_type = ANY (l.task_types))
   ORDER BY task_type LIMIT 100)
SELECT u.task_type, (SELECT count(*) FROM (
         (SELECT 1 FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = u.task_type
           ORDER BY t.priority, t.attempt, t.task_id LIMIT 1000)
         UNION ALL
         (SELECT 1 FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type = u.task_type
           ORDER BY t.run_at LIMIT 1000)
         LIMIT 1000) AS found)
  FROM unhandled u`

// unhandledInterval is how often a type without a handler is reported.
const unhandledInterval = time.Minute

// reportUnhandled is the job that logs the task types that have tasks and no handler in any living
// relay. The tasks are left alone.
func (p *Params) reportUnhandled(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	return unhandledInterval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		rows, err := conn.QueryContext(ctx, p.Schema.SQL(unhandledSQL), pq.Array(p.Types))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var taskType string
			var n int
			if err := rows.Scan(&taskType, &n); err != nil {
				return err
			}
			atLeast := ""
			if n == 1000 {
				atLeast = " (counted up to 1000)"
			}
			p.Log.Warn("outbox: no relay has a handler for this task type; its tasks wait"+atLeast,
				"task_type", taskType, "tasks", n)
		}
		return rows.Err()
	})
}
