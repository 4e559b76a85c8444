package doctor

// The dates are the days of the last minor releases, as on postgresql.org/support/versioning and in
// docs/guide/production.md.
const serverVersionSQL = `/* outbox: version of the server */
SELECT CASE WHEN major < 14 THEN 'critical' ELSE 'warning' END, version, CASE
         WHEN major < 14 THEN format('PostgreSQL %s is too old: schema.Migrate and relays refuse it', version)
         WHEN major > 18 THEN format('PostgreSQL %s is newer than the tested versions, 14 to 18', version)
         ELSE format('PostgreSQL %s has ended: there are no fixes for it since %s', major, ended) END, CASE
         WHEN major < 14 THEN 'use PostgreSQL 14 to 18'
         WHEN major > 18 THEN 'look for a version of the module github.com/txoutbox/outbox that names it; ' ||
              'until then try each change on staging'
         ELSE format('move to a newer major version; the outbox is tested with %s until a year after that', major) END
  FROM (SELECT current_setting('server_version_num')::integer / 10000 AS major,
               current_setting('server_version') AS version) AS s
  LEFT JOIN (VALUES (14, date '2026-11-12'), (15, '2027-11-11'), (16, '2028-11-09'), (17, '2029-11-08'),
                    (18, '2030-11-14')) AS e (of_major, ended) ON of_major = major
 WHERE ended IS NULL OR $1::timestamptz > ended + 1`

const primarySQL = `/* outbox: whether the server is a standby */
SELECT 'info', '', 'the server is a standby: relays cannot work on it, and its sessions and statistics are its own',
       'ask the primary as well' WHERE pg_is_in_recovery()`

const durabilitySQL = `/* outbox: settings that risk data */
SELECT 'critical', name, name || ' is off: a crash of the machine may destroy the database',
       format('ALTER SYSTEM SET %s = on, then SELECT pg_reload_conf()', name)
  FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
 UNION ALL
SELECT 'info', name, 'synchronous_commit is off for this role: a crash of the server may lose the latest commits ' ||
       'of such roles, tasks and business rows alike',
       'leave it on where tasks are enqueued and run, unless that is intended'
  FROM pg_settings WHERE name = 'synchronous_commit' AND setting = 'off' ORDER BY 2`

const notificationsSQL = `/* outbox: usage of the queue of notifications */
SELECT CASE WHEN used >= 0.5 THEN 'critical' ELSE 'warning' END, '',
       format('the server''s queue of notifications is %s %% full: once it is full, commits that notify fail, ' ||
              'enqueues of tasks among them', round(used::numeric * 100, 1)),
       'end the session that listens and does not read, mostly one that is idle in a transaction: ' ||
       'see held-transaction, and the server''s log, which names its pid'
  FROM pg_notification_queue_usage() AS q (used) WHERE used >= 0.05`
