package doctor

import (
	"context"
	"fmt"
)

// Sessions that have locked a table of the outbox, or want to, and wait for a lock of any kind. The
// pid of a prepared transaction is 0.
const locksSQL = `/* outbox: sessions that hold up others on the tables */
WITH waiting AS (
  SELECT w.pid, w.locktype, clock_timestamp() - w.waitstart AS waited, pg_blocking_pids(w.pid) AS blockers
    FROM pg_locks w
   WHERE NOT w.granted AND EXISTS (
     SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE l.pid = w.pid AND n.nspname = $1
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
SELECT b.pid, count(*), bool_or(w.locktype = 'relation'), (extract(epoch FROM max(w.waited)) * 1000000)::bigint,
       COALESCE(a.usename::text, ''), COALESCE(a.application_name, ''), COALESCE(a.state, '')
  FROM waiting w, unnest(w.blockers) AS b (pid) LEFT JOIN pg_stat_activity a ON a.pid = b.pid
 WHERE b.pid NOT IN (SELECT pid FROM waiting)
 GROUP BY b.pid, a.usename, a.application_name, a.state ORDER BY 4 DESC NULLS LAST, 1 LIMIT 100`

func checkLocks(ctx context.Context, v *visit) error {
	var pid, sessions int64
	var ofTable bool
	var longest span
	var role, name, state string
	into := []any{&pid, &sessions, &ofTable, &longest, &role, &name, &state}
	return v.each(ctx, locksSQL, []any{v.schema}, into, func() {
		if longest.Duration < v.settings.waited {
			return
		}
		severity, lock := Warning, "a row or a unique key"
		if ofTable {
			severity, lock = Critical, "a lock on a whole table"
		}
		subject, holder := fmt.Sprint("pid ", pid),
			fmt.Sprintf("pid %d (role %s, application %q, %s)", pid, role, name, state)
		do := fmt.Sprintf("find its purpose and end it there, or SELECT pg_terminate_backend(%d)", pid)
		if pid == 0 {
			subject, holder, do = "", "a prepared transaction", "see prepared-transaction"
		}
		v.add("lock-wait", severity, subject,
			fmt.Sprintf("%s for %s that %s has, the longest for %s: they work on the outbox's tables",
				plural(sessions, "session waits", "sessions wait"), lock, holder, longest), do)
	})
}
