package doctor

import (
	"context"
	"fmt"
)

const locksSQL = `/* outbox: who waits for locks on the tables */
SELECT c.relname, l.mode, count(*), max((extract(epoch FROM clock_timestamp() - l.waitstart) * 1000000)::bigint),
       (SELECT COALESCE(string_agg(DISTINCT b.pid::text, ', '), '') FROM pg_locks w, unnest(pg_blocking_pids(w.pid)) AS b (pid)
         WHERE b.pid <> 0 AND NOT w.granted AND w.relation = c.oid AND w.database = l.database
           AND NOT EXISTS (SELECT 1 FROM pg_locks o WHERE o.pid = b.pid AND NOT o.granted))
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE NOT l.granted AND l.locktype = 'relation' AND n.nspname = $1
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY c.oid, c.relname, l.mode, l.database ORDER BY 4 DESC NULLS LAST LIMIT 100`

// Sessions that hold locks on the tables and wait for a transaction: for a row, or a unique key.
const rowLocksSQL = `/* outbox: who waits for transactions */
SELECT count(*), max((extract(epoch FROM clock_timestamp() - w.waitstart) * 1000000)::bigint),
       COALESCE((SELECT string_agg(DISTINCT b.pid::text, ', ') FROM pg_locks o, unnest(pg_blocking_pids(o.pid)) AS b (pid)
                  WHERE o.pid = ANY (array_agg(w.pid)) AND NOT o.granted AND b.pid <> 0), '')
  FROM pg_locks w
 WHERE NOT w.granted AND w.locktype IN ('transactionid', 'tuple', 'virtualxid')
   AND EXISTS (SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE l.pid = w.pid AND l.granted AND n.nspname = $1
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
HAVING count(*) > 0`

// Locks that conflict with all reads or all writes. A prepared transaction has no pid; the lock of
// its id names it.
const strongLocksSQL = `/* outbox: who holds strong locks on the tables */
SELECT c.relname, l.mode, COALESCE(l.pid, 0), COALESCE(a.usename::text, p.owner::text, ''), COALESCE(a.application_name, ''),
       COALESCE(a.state, ''), COALESCE(p.gid, ''), COALESCE(quote_literal(p.gid), ''),
       (extract(epoch FROM clock_timestamp() - COALESCE(a.xact_start, p.prepared)) * 1000000)::bigint
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
  LEFT JOIN pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.granted
                      AND x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction
  LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
 WHERE l.granted AND l.locktype = 'relation' AND n.nspname = $1 AND c.relkind IN ('r', 'p')
   AND l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')
   AND l.pid IS DISTINCT FROM pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY 9 DESC NULLS LAST LIMIT 100`

func checkLocks(ctx context.Context, v *visit) error {
	if err := v.strongLocks(ctx); err != nil {
		return err
	}
	var table, mode, blockers string
	var sessions int64
	var longest span
	err := v.each(ctx, rowLocksSQL, []any{v.schema}, []any{&sessions, &longest, &blockers}, func() {
		if longest.Duration >= v.settings.waited {
			v.add("lock-wait", Warning, "", fmt.Sprintf("among the sessions that work on the outbox's tables, "+
				"%s for another transaction's end, the longest for %s: for a row or a unique key",
				waits(sessions), longest), endThem(blockers))
		}
	})
	if err != nil {
		return err
	}
	return v.each(ctx, locksSQL, []any{v.schema}, []any{&table, &mode, &sessions, &longest, &blockers}, func() {
		if longest.Duration >= v.settings.waited {
			v.add("lock-wait", Critical, table,
				fmt.Sprintf("%s for %s on the table %s, the longest for %s", waits(sessions), mode, table, longest),
				endThem(blockers))
		}
	})
}

func waits(sessions int64) string { return plural(sessions, "session waits", "sessions wait") }

func endThem(pids string) string {
	if pids == "" {
		return "see prepared-transaction and held-transaction"
	}
	return "find the purpose of these sessions, and end them there or with pg_terminate_backend: pid " + pids
}

func (v *visit) strongLocks(ctx context.Context) error {
	var table, mode, role, name, state, prepared, quoted string
	var pid int64
	var since span // 0: unknown, as the role does not see other roles' sessions
	into := []any{&table, &mode, &pid, &role, &name, &state, &prepared, &quoted, &since}
	return v.each(ctx, strongLocksSQL, []any{v.schema}, into, func() {
		if since.Duration < v.settings.waited {
			return
		}
		subject := fmt.Sprint("pid ", pid)
		holder := fmt.Sprintf("the session of pid %d (role %s, application %q, %s)", pid, role, name, state)
		do := endThem(fmt.Sprint(pid))
		if prepared != "" {
			subject, holder = prepared, fmt.Sprintf("the prepared transaction %s of the role %s", quoted, role)
			do = "COMMIT PREPARED " + quoted + " or ROLLBACK PREPARED " + quoted
		}
		v.add("lock-wait", Critical, subject,
			fmt.Sprintf("%s has locked the table %s by %s, in a transaction that is %s old: "+
				"conflicting statements wait", holder, table, mode, since), do)
	})
}
