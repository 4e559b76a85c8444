package upkeep

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/counts"
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

const (
	sampleInterval = time.Minute
	sampleKept     = 24 * time.Hour
	SampleTypes    = 1000 // of one sample: those with most tasks
	samplePurge    = 2000 // rows that are deleted with it
)

// One statement: the counts of each type, their sum under the type "", which no type is called, and
// the end of what is old. The rows that one sample adds are fewer than those that the next ones
// delete, however long no relay was there to delete them.
const sampleSQL = `/* outbox: sample the counts */
WITH old AS (
  DELETE FROM outbox.sample WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM outbox.sample WHERE at < now() - $1::bigint * interval '1 microsecond' ORDER BY at LIMIT $2))),
count AS MATERIALIZED (` + counts.SQL + `)
INSERT INTO outbox.sample (at, task_type, ready, scheduled, retrying, leased, waiting, dead, finished, failed,
  oldest_ready)
SELECT now(), '', COALESCE(sum(ready), 0)::bigint, COALESCE(sum(scheduled), 0)::bigint,
       COALESCE(sum(retrying), 0)::bigint, COALESCE(sum(leased), 0)::bigint, COALESCE(sum(waiting), 0)::bigint,
       COALESCE(sum(dead), 0)::bigint,
       COALESCE(sum(finished), 0)::bigint, COALESCE(sum(failed), 0)::bigint, COALESCE(max(age), 0) FROM count
UNION ALL
(SELECT now(), task_type, ready, scheduled, retrying, leased, waiting, dead, finished, failed, COALESCE(age, 0)
   FROM count
  ORDER BY ready + scheduled + retrying + leased + waiting + dead DESC, task_type LIMIT $3)
ON CONFLICT DO NOTHING`

// sample notes the counts for admin.Client.Samples.
func sample(ctx context.Context, in pg.Schema, _ *slog.Logger, tx *sql.Tx) (next time.Duration, err error) {
	// With statistics of another time, or where a forgotten transaction keeps what was claimed,
	// PostgreSQL would rather read the whole table. What has no index is read so all the same, at a
	// cost for which it would compile the statement.
	const settings = `SELECT set_config('enable_seqscan', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`
	if _, err := tx.ExecContext(ctx, settings); err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, in.SQL(sampleSQL), sampleKept.Microseconds(), samplePurge, SampleTypes)
	return sampleInterval, err
}
