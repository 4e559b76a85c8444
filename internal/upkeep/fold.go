package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

const (
	foldRows   = 5000                   // of one statement
	foldBudget = 300 * time.Millisecond // of one part of the job
	foldBusy   = 2 * time.Second
	foldIdle   = 5 * time.Second // after nothing was found
)

// Two folds at once delete different rows: the later fold waits for rows of the earlier fold and
// finds them deleted. The order of the inserts keeps them from a deadlock.
const foldSQL = `/* outbox: fold the log of counts */
WITH moved AS (
  DELETE FROM outbox.counter_log WHERE ctid = ANY (ARRAY(SELECT ctid FROM outbox.counter_log LIMIT $1))
  RETURNING task_type, kind, tasks, arrived),
added AS (
  INSERT INTO outbox.counter AS c (task_type, kind, tasks, arrived)
  SELECT task_type, kind, sum(tasks), sum(arrived) FROM moved GROUP BY task_type, kind ORDER BY task_type, kind
  ON CONFLICT (task_type, kind) DO UPDATE SET tasks = c.tasks + EXCLUDED.tasks, arrived = c.arrived + EXCLUDED.arrived)
SELECT count(*) FROM moved`

// fold moves what changed from outbox.counter_log to outbox.counter, which outbox.Stats adds up.
func fold(ctx context.Context, in pg.Schema, _ *slog.Logger, tx *sql.Tx) (next time.Duration, err error) {
	next = foldIdle
	for began := time.Now(); time.Since(began) < foldBudget; next = foldBusy {
		var n int
		if err := tx.QueryRowContext(ctx, in.SQL(foldSQL), foldRows).Scan(&n); err != nil {
			return 0, err
		}
		if n < foldRows {
			if n > 0 {
				next = foldBusy
			}
			return next, nil
		}
	}
	return 0, nil
}
