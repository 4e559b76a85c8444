package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

const waitedFor = 5 * time.Second // for a lock: longer than a deadlock takes to be found

const locksSQL = `/* outbox: who waits for locks on the tables */
SELECT c.relname, l.mode, count(*), max((extract(epoch FROM clock_timestamp() - l.waitstart) * 1000000)::bigint),
       (SELECT COALESCE(string_agg(DISTINCT b.pid::text, ', '), '') FROM pg_locks w, unnest(pg_blocking_pids(w.pid)) AS b (pid)
         WHERE NOT w.granted AND w.relation = c.oid AND w.database = l.database AND NOT EXISTS (SELECT 1 FROM pg_locks o WHERE o.pid = b.pid AND NOT o.granted))
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT l.granted AND l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND n.nspname = $1
 GROUP BY c.oid, c.relname, l.mode, l.database ORDER BY 4 DESC NULLS LAST LIMIT 100`

func checkLocks(ctx context.Context, v *visit) error {
	return v.rows(ctx, func(row *sql.Rows) error {
		var table, mode, blockers string
		var sessions int64
		var longest sql.NullInt64
		if err := row.Scan(&table, &mode, &sessions, &longest, &blockers); err != nil {
			return err
		}
		if time.Duration(longest.Int64)*time.Microsecond < v.waited {
			return nil
		}
		do := "see held-transaction"
		if blockers != "" {
			do = "look what these sessions do, and end them there or with pg_terminate_backend: pid " + blockers
		}
		v.add("lock-wait", Critical, table, fmt.Sprintf("%s for %s on the table %s, the longest for %s", waits(sessions), mode, table, age(longest.Int64)), do)
		return nil
	}, locksSQL, v.schema)
}

func waits(sessions int64) string {
	if sessions == 1 {
		return "1 session waits"
	}
	return fmt.Sprintf("%d sessions wait", sessions)
}
