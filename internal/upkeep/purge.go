package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

const purgeRows = 1000 // of one statement

// now() and not clock_timestamp(), which no index can be searched for.
const purgeDeadSQL = `/* outbox: purge old dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id FROM outbox.dead_task WHERE died_at < now() - $1::bigint * interval '1 microsecond'
   ORDER BY died_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d))`

const purgeDoneSQL = `/* outbox: purge the history */
WITH d AS MATERIALIZED (
  SELECT task_id FROM outbox.done_task WHERE keep_until < now()
   ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.done_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d))`

const purgeInboxSQL = `/* outbox: purge the inbox */
WITH d AS MATERIALIZED (
  SELECT source, event_id FROM outbox.inbox WHERE keep_until < now()
   ORDER BY keep_until LIMIT $1 FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.inbox i USING d WHERE i.source = d.source AND i.event_id = d.event_id`

const purgeInterval = 2 * time.Minute

// purgeFor is how long one purge goes on while there is more: it shares the heartbeat's connection.
const purgeFor = 200 * time.Millisecond

// purge is a job that deletes by a query, whose last parameter is how many rows at most.
func purge(query string, args ...any) func(context.Context, pg.Schema, *slog.Logger, *sql.Tx) (time.Duration, error) {
	args = append(args, purgeRows)
	return func(ctx context.Context, in pg.Schema, _ *slog.Logger, tx *sql.Tx) (next time.Duration, err error) {
		for start := time.Now(); time.Since(start) < purgeFor; {
			result, err := tx.ExecContext(ctx, in.SQL(query), args...)
			if err != nil {
				return 0, err
			}
			if n, err := result.RowsAffected(); err != nil || n < purgeRows {
				return purgeInterval, err
			}
		}
		return 0, nil
	}
}
