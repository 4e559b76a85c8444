package doctor

// The app may choose any run_at, so a task counts only after an attempt in the future.
const futureTimesSQL = `/* outbox: times that lie too far ahead */
WITH ahead (name, n) AS (
  SELECT 'relay', count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '5 minutes'
  UNION ALL
  SELECT 'maintenance', count(*) FROM outbox.maintenance WHERE due_at > clock_timestamp() + interval '1 hour'
  UNION ALL
  SELECT 'task', count(*) FROM (SELECT attempted_at FROM outbox.task WHERE state = 'scheduled' LIMIT 10000) AS t
   WHERE attempted_at > clock_timestamp() + interval '1 minute')
SELECT 'warning', name, format('times further ahead than they can be are in %s rows of the table %s: they were ' ||
       'written while the server''s clock was ahead', n, name),
       'keep the server''s clock by NTP; ' || CASE name
         WHEN 'task' THEN 'the tasks wait by that clock: let them run with the function RunNow, ' ||
                          'or the command outbox tasks run-now'
         ELSE 'relays correct these rows within a minute' END
  FROM ahead WHERE n > 0`

// $1: the time of this process as it sent the statement.
const clockSQL = `/* outbox: clock */
SELECT 'info', '', format('the server''s clock is %s %s this process''s: the outbox uses the server''s, but a RunAt ' ||
       'that the app computes is by the app''s', date_trunc('second', GREATEST(off, -off)),
       CASE WHEN off > interval '0' THEN 'ahead of' ELSE 'behind' END),
       'synchronise both; enqueue with the option After, which uses the server''s clock'
  FROM (SELECT clock_timestamp() - $1::timestamptz AS off) AS c
 WHERE off NOT BETWEEN interval '-5 seconds' AND interval '5 seconds'`

// At vacuum_failsafe_age, 1,600 million, autovacuum does nothing else.
const wraparoundSQL = `/* outbox: age of transaction ids */
SELECT CASE WHEN age >= $2 * 1.5 THEN 'critical' ELSE 'warning' END, name,
       format('%s, a table of %s, has transaction ids that are %s old: ' ||
              'at about 2,100,000,000 the server refuses writes',
              name, CASE WHEN ours THEN 'the outbox' ELSE 'the app' END, age),
       'end the sessions and slots that hold up vacuum (held-transaction, prepared-transaction, replication-slot, ' ||
       'standby-feedback), then VACUUM (FREEZE) ' || name
  FROM (SELECT c.oid::regclass::text AS name, n.nspname = $1 AS ours,
               GREATEST(age(c.relfrozenxid), mxid_age(c.relminmxid)) AS age
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'm', 't') AND c.relfrozenxid <> '0' ORDER BY 3 DESC, 2 DESC, 1 LIMIT 1) AS oldest
 WHERE age >= $2::bigint`
