package doctor

// Sessions that wait for a lock of a table of the outbox, or of its rows. A session that waits for
// a row waits for a transaction, and holds the tuple lock of the row. One that waits for a unique
// key holds none: it counts if its statement names the outbox, or is not shown. The pid of a
// prepared transaction is 0.
const locksSQL = `/* outbox: sessions that hold up others on the tables */
WITH own AS (
  SELECT l.pid, l.locktype, l.granted
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = $1 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
waiting AS (
  SELECT w.pid, w.locktype, clock_timestamp() - w.waitstart AS waited, pg_blocking_pids(w.pid) AS blockers
    FROM pg_locks w LEFT JOIN pg_stat_activity a ON a.pid = w.pid
   WHERE NOT w.granted AND EXISTS (SELECT 1 FROM own WHERE own.pid = w.pid)
     AND CASE WHEN w.relation IS NOT NULL
                THEN EXISTS (SELECT 1 FROM own WHERE own.pid = w.pid AND NOT own.granted)
              WHEN EXISTS (SELECT 1 FROM pg_locks t WHERE t.pid = w.pid AND t.locktype = 'tuple' AND t.granted)
                THEN EXISTS (SELECT 1 FROM own WHERE own.pid = w.pid AND own.locktype = 'tuple')
              ELSE COALESCE(a.query, '<insufficient privilege>') ~
                   ('<insufficient privilege>|/\* outbox: |\m' || $1 || '"?\.') END),
blocker AS (
  SELECT b.pid, count(*) AS sessions, bool_or(w.locktype = 'relation') AS of_table,
         date_trunc('milliseconds', max(w.waited)) AS longest
    FROM waiting w, unnest(w.blockers) AS b (pid)
   WHERE b.pid NOT IN (SELECT pid FROM waiting)
   GROUP BY b.pid HAVING max(w.waited) >= $2::bigint * interval '1 microsecond')
SELECT CASE WHEN of_table THEN 'critical' ELSE 'warning' END, CASE WHEN pid > 0 THEN 'pid ' || pid ELSE '' END,
       format('%s holds up %s %s on the outbox''s tables by a lock of %s, the longest for %s',
              CASE WHEN pid = 0 THEN 'a prepared transaction'
                   ELSE format('pid %s (role %s, application "%s", %s)',
                               pid, a.usename, a.application_name, a.state) END,
              sessions, CASE WHEN sessions = 1 THEN 'session' ELSE 'sessions' END,
              CASE WHEN of_table THEN 'a whole table' ELSE 'a row or a unique key' END, longest),
       CASE WHEN pid = 0 THEN 'see prepared-transaction'
            ELSE format('find its purpose and end it there, or SELECT pg_terminate_backend(%s)', pid) END
  FROM blocker b LEFT JOIN pg_stat_activity a USING (pid) ORDER BY longest DESC, pid LIMIT 100`
