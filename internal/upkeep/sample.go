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
	sampleInterval = time.Minute
	sampleKept     = 24 * time.Hour
	sampleTypes    = 1000 // of one sample: those with most tasks
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
INSERT INTO outbox.sample (at, task_type, ready, scheduled, leased, waiting, dead, finished, failed, oldest_ready)
SELECT now(), '', COALESCE(sum(ready), 0)::bigint, COALESCE(sum(scheduled), 0)::bigint,
       COALESCE(sum(leased), 0)::bigint, COALESCE(sum(waiting), 0)::bigint, COALESCE(sum(dead), 0)::bigint,
       COALESCE(sum(finished), 0)::bigint, COALESCE(sum(failed), 0)::bigint, COALESCE(max(age), 0) FROM count
UNION ALL
(SELECT now(), task_type, ready, scheduled, leased, waiting, dead, finished, failed, COALESCE(age, 0) FROM count
  ORDER BY ready + scheduled + leased + waiting + dead DESC, task_type LIMIT $3)
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
	_, err = tx.ExecContext(ctx, in.SQL(sampleSQL), sampleKept.Microseconds(), samplePurge, sampleTypes)
	return sampleInterval, err
}
