package doctor

const serverVersionSQL = `/* outbox: version of the server */
SELECT CASE WHEN major < 14 THEN 'critical' ELSE 'warning' END, version, format(CASE WHEN major < 14
         THEN 'PostgreSQL %s is too old: schema.Migrate and relays refuse it'
         ELSE 'PostgreSQL %s is newer than the tested versions, 14 to 18' END, version),
       CASE WHEN major < 14 THEN 'use PostgreSQL 14 to 18'
            ELSE 'look for a version of the module github.com/txoutbox/outbox that names it; ' ||
                 'until then try each change on staging' END
  FROM (SELECT current_setting('server_version_num')::integer / 10000 AS major,
               current_setting('server_version') AS version) AS s
 WHERE major NOT BETWEEN 14 AND 18`

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
