package doctor

import (
	"context"
	"strings"
)

// serverChecks are of the server, its settings and its connections.
var serverChecks = []check{
	{name: "server-version", fine: "the server's version is supported", query: serverVersionSQL, args: ofClock},
	{name: "primary", fine: "the server is a primary", query: primarySQL},
	{name: "durability", fine: "fsync and full_page_writes are on, and commits wait for the disk", query: durabilitySQL},
	{name: "collation-version", fine: "the library has the order of text that the database was made with",
		look: checkCollations},
	{name: "session-settings", fine: "no timeout or mode of the roles, the database or the server is in the relays' way",
		query: settingsSQL, bare: true},
	{name: "clock", fine: "the server's clock and this process's agree", query: clockSQL, args: ofClock},
	{name: "notification-queue", fine: "the queue of notifications is empty, or nearly so", query: notificationsSQL,
		args: func(s settings) []any { return []any{s.queued} }},
	{name: "connections", fine: "the server has connections to give", query: connectionsSQL},
	{name: "relay-pool", query: poolsSQL,
		fine: "the pools of the relays are large enough, as far as it is known, and the server can serve them"},
}

func ofClock(s settings) []any { return []any{s.now()} }

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

const collationVersionsSQL = `/* outbox: versions of collations */
SELECT format('%I', d.datname), d.datcollversion, pg_database_collation_actual_version(d.oid)
  FROM pg_database d
 WHERE d.datname = current_database() AND d.datcollversion <> pg_database_collation_actual_version(d.oid)`

// checkCollations finds another order of text than the database's indexes were made with. The text of
// the outbox is in COLLATE "C", which has no versions.
func checkCollations(ctx context.Context, v *visit) error {
	var major int
	err := v.row(ctx, `SELECT current_setting('server_version_num')::integer / 10000`, nil, &major)
	if err != nil || major < 15 { // before it a database had no version
		return err
	}
	var database, made, now string
	return v.each(ctx, collationVersionsSQL, nil, []any{&database, &made, &now}, func() {
		v.add("collation-version", SeverityWarning, "", "the database has the order of text of version "+made+
			", and the server's library has that of "+now+
			": the app's indexes on text may miss rows, and accept a unique value twice",
			"REINDEX DATABASE "+database+", where a duplicate is an error: give one of the two rows another value; "+
				"then ALTER DATABASE "+database+" REFRESH COLLATION VERSION. The outbox's own indexes need neither: their collation is C")
	})
}

// plannerRules are those of the methods that statements of the outbox need.
var plannerRules = func() (rules string) {
	for method := range strings.FieldsSeq("seqscan indexscan indexonlyscan bitmapscan sort nestloop hashjoin hashagg") {
		rules += "('enable_" + method + "', NULL, 'PostgreSQL plans statements of tools and of the app badly, " +
			"and may compile them; relays turn it on for their own, at more round trips', NULL),\n  "
	}
	return rules
}()

// The settings of the server, this database, and the roles that may write tasks. Other settings are
// not read: an app may keep secrets there. Of the settings that clients send when they connect, only
// the doctor's own are visible. A rule has the least timeout that enqueues and tools need, and the first
// statement of a relay's connection. The connection of ListenDSN sends something every 15 s.
var settingsSQL = `/* outbox: settings of sessions */
WITH rule (name, least, what, more) AS (VALUES
  ('statement_timeout', interval '5 s', 'enqueues, tools and the first statements of relays may fail; ' ||
   'relays lift it for their others, at more round trips',
   'at least 30s'),
  ('lock_timeout', interval '1 s', 'enqueues with a unique key may fail after a short wait; ' ||
   'relays lift it, at more round trips',
   'at least 10s'),
  ('transaction_timeout', interval '5 s', 'it ends connections of relays that claim, poll or clean up; ' ||
   'it is lifted for handlers, task.Complete and schema.Migrate', 'at least 30s'),
  ('idle_session_timeout', interval '20 s', 'it ends the relays'' connections for LISTEN again and again, ' ||
   'and tasks enqueued meanwhile wait for a poll', 'more than 20s'),
  ('default_transaction_read_only', NULL, 'relays do not start, and schema.Migrate refuses; transactions without ' ||
   'READ WRITE, as on pgx, fail with SQLSTATE 25006, enqueues among them', NULL),
  ('session_replication_role', NULL, 'triggers do not fire, and ` + onTriggers + `', NULL),
  ('jit_above_cost', NULL, 'PostgreSQL compiles most statements of tools and of the app, for up to a second each; ' ||
   'relays turn that off for their own, at more round trips', NULL),
  ` + plannerRules + `
  ('client_encoding', NULL, 'pgx sends UTF-8 all the same, so text beyond ASCII is stored as other characters; ' ||
   'lib/pq sets UTF8 itself', NULL)),
given AS (
  SELECT s.name, s.reset_val || COALESCE(s.unit, '') AS value, 'on the server' AS scope,
         format('ALTER SYSTEM RESET %s, then SELECT pg_reload_conf()', s.name) AS reset, true AS relays
    FROM pg_settings s JOIN rule USING (name)
   WHERE s.source IN ('default', 'configuration file', 'command line', 'environment variable', 'global')
  UNION ALL
  SELECT s.name, s.reset_val || COALESCE(s.unit, ''),
         'in the connection string of the doctor', 'take it out where a relay has it too', true
    FROM pg_settings s JOIN rule USING (name) WHERE s.source = 'client'
  UNION ALL
  SELECT k.name, split_part(c.setting, '=', 2),
         CASE WHEN r.setrole = 0 THEN format('for the database %I', current_database())
              WHEN r.setdatabase = 0 THEN format('for the role %s', r.setrole::regrole)
              ELSE format('for the role %s in the database %I', r.setrole::regrole, current_database()) END,
         CASE WHEN r.setrole = 0 THEN format('ALTER DATABASE %I RESET %s', current_database(), k.name)
              WHEN r.setdatabase = 0 THEN format('ALTER ROLE %s RESET %s', r.setrole::regrole, k.name)
              ELSE format('ALTER ROLE %s IN DATABASE %I RESET %s', r.setrole::regrole, current_database(), k.name) END,
         r.setrole = 0 OR has_table_privilege(r.setrole, 'outbox.task', 'DELETE')
    FROM pg_db_role_setting r, unnest(r.setconfig) AS c (setting), rule k
   WHERE r.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
     AND k.name = split_part(c.setting, '=', 1)
     AND (r.setrole = 0 OR has_any_column_privilege(r.setrole, 'outbox.task', 'INSERT'))),
judged AS (
  SELECT g.*, r.what, r.more, CASE g.name
         WHEN 'session_replication_role' THEN CASE WHEN value = 'replica' THEN 'critical' END
         WHEN 'jit_above_cost' THEN CASE WHEN value::double precision BETWEEN 0 AND 99999 THEN 'warning' END
         WHEN 'client_encoding' THEN
           CASE WHEN replace(lower(value), '-', '') NOT IN ('utf8', 'unicode') THEN 'warning' END
         WHEN 'default_transaction_read_only' THEN CASE WHEN value IN ('on', 'true', 'yes', '1') THEN 'warning' END
         ELSE CASE WHEN g.name LIKE 'enable%' THEN CASE WHEN value IN ('off', 'false', 'no', '0') THEN 'warning' END
                   WHEN NOT relays OR t.timeout <= interval '0' THEN NULL WHEN t.timeout < r.least THEN 'warning'
                   WHEN g.name = 'idle_session_timeout' THEN 'info' END END AS severity
    FROM given g JOIN rule r USING (name) CROSS JOIN LATERAL (
      SELECT CASE WHEN name NOT LIKE '%timeout' THEN NULL WHEN value ~ '^[0-9]+$' THEN value::bigint * interval '1 ms'
                  ELSE value::interval END AS timeout) AS t)
SELECT severity, name, format('%s is %s %s: %s', name, value, scope,
         CASE severity WHEN 'info' THEN 'the server ends idle connections of pools' ELSE what END),
       CASE WHEN severity = 'info' THEN 'set a shorter ConnMaxIdleTime of the pools: they then end them themselves'
            ELSE reset || COALESCE(format(', or %s for the relays'' role', more), '') END
  FROM judged WHERE severity IS NOT NULL ORDER BY name, scope`

// $1: the time of this process as it sent the statement.
const clockSQL = `/* outbox: clock */
SELECT 'info', '', format('the server''s clock is %s %s this process''s: the outbox uses the server''s, but a RunAt ' ||
       'that the app computes is by the app''s', date_trunc('second', GREATEST(off, -off)),
       CASE WHEN off > interval '0' THEN 'ahead of' ELSE 'behind' END),
       'synchronise both; enqueue with the option After, which uses the server''s clock'
  FROM (SELECT clock_timestamp() - $1::timestamptz AS off) AS c
 WHERE off NOT BETWEEN interval '-5 seconds' AND interval '5 seconds'`

// $1: the least part of the queue in use that is reported.
const notificationsSQL = `/* outbox: usage of the queue of notifications */
SELECT CASE WHEN used >= $1::float8 * 10 THEN 'critical' ELSE 'warning' END, '',
       format('the server''s queue of notifications is %s %% full: once it is full, commits that notify fail, ' ||
              'enqueues of tasks among them', round(used::numeric * 100, 1)),
       'end the session that listens and does not read, mostly one that is idle in a transaction: ' ||
       'see held-transaction, and the server''s log, which names its pid'
  FROM pg_notification_queue_usage() AS q (used) WHERE used >= $1::float8`

// The connections that the server has for roles other than superusers and, since PostgreSQL 16,
// members of pg_use_reserved_connections.
const serverConnections = `current_setting('max_connections')::bigint
       - current_setting('superuser_reserved_connections')::bigint
       - COALESCE(current_setting('reserved_connections', true), '0')::bigint`

// Roles without pg_read_all_stats do not see the type of other backends.
const connectionsSQL = `/* outbox: connections */
WITH client AS (
  SELECT state, COALESCE(NULLIF(application_name, ''), usename::text, '') AS name FROM pg_stat_activity
   WHERE datid IS NOT NULL AND COALESCE(backend_type, 'client backend') = 'client backend'),
total AS (
  SELECT ` + serverConnections + ` AS most, count(*) AS used, count(*) FILTER (WHERE state = 'active') AS active,
         count(*) FILTER (WHERE state = 'idle') AS idle,
         count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS held,
         (SELECT string_agg(format('%s by %s', n, name), ', ' ORDER BY n DESC, name)
            FROM (SELECT name, count(*) AS n FROM client GROUP BY name ORDER BY 2 DESC, 1 LIMIT 3) AS most) AS users
    FROM client)
SELECT CASE WHEN used >= most * 0.95 THEN 'critical' WHEN used >= most * 0.85 THEN 'warning' ELSE 'ok' END, '',
       format('%s of %s connections are in use: %s active, %s idle, %s idle in a transaction; the most %s',
              used, most, active, idle, held, users),
       CASE WHEN used >= most * 0.85 THEN 'make pools smaller (SetMaxOpenConns), put PgBouncer in transaction mode ' ||
            'before the server, or raise max_connections, which takes a restart' ELSE '' END
  FROM total
 UNION ALL
SELECT CASE WHEN used >= most * 0.95 THEN 'critical' ELSE 'warning' END, name,
       format('%s of %s connections %s are in use', used, most, whose),
       format('make pools smaller, or ALTER %s CONNECTION LIMIT with more', what)
  FROM (SELECT d.datname::text AS name, 'to the database ' || d.datname AS whose,
               format('DATABASE %I', d.datname) AS what,
               d.datconnlimit AS most, (SELECT count(*) FROM pg_stat_activity a WHERE a.datid = d.oid) AS used
          FROM pg_database d WHERE d.datname = current_database()
         UNION ALL
        SELECT r.rolname, 'of the role ' || r.rolname, format('ROLE %I', r.rolname), r.rolconnlimit, count(*)
          FROM pg_roles r JOIN pg_stat_activity a ON a.usesysid = r.oid WHERE NOT r.rolsuper
         GROUP BY r.rolname, r.rolconnlimit
        HAVING count(*) FILTER (WHERE a.datname = current_database()) > 0) AS limited
 WHERE most >= 0 AND used >= most * 0.85`

// A relay holds two connections besides those of its workers, and its Leased handlers share ten, as
// relay.Config.Workers says. Its kinds of handlers are unknown. The relays of one process may share a
// pool. A pool without a limit takes as many connections as its relay needs.
const poolsSQL = `/* outbox: pools of relays */
WITH alive AS (
  SELECT relay_id::text AS id, format('%s (pid %s on %s)', relay_id, pid, host) AS name, pid, host, workers, connections,
         LEAST(workers, 10) + 2 AS leased, workers + 2 AS needed
    FROM outbox.relay WHERE alive_until > clock_timestamp() AND workers > 0 ORDER BY relay_id LIMIT 1000),
together AS (
  SELECT sum(conns) AS conns, count(*) AS processes
    FROM (SELECT max(COALESCE(connections, leased)) AS conns FROM alive GROUP BY pid, host) AS p),
server AS (
  SELECT LEAST(` + serverConnections + `, NULLIF(datconnlimit, -1)) AS most
    FROM pg_database WHERE datname = current_database())
SELECT CASE WHEN connections < leased THEN 'warning' ELSE 'info' END, id,
       format('the pool of the relay %s is limited to %s connections, and it has %s workers: ',
              name, connections, workers) ||
       CASE WHEN connections < leased THEN 'it is too small whatever its handlers are, so workers wait ' ||
         'for connections, and heartbeats with them' ELSE 'that is enough only if all its handlers are Leased' END,
       CASE WHEN connections < leased THEN '' ELSE 'if some are Tx or Batch: ' END ||
       format('db.SetMaxOpenConns(%s) or more, on a *sql.DB of the relay''s own, and one more with Schedules; ' ||
         'or fewer relay.Config.Workers', needed)
  FROM alive WHERE connections < needed
 UNION ALL
SELECT 'warning', '', format('the pools of the relays may take %s connections together, in %s processes, ' ||
         'and the server has %s in all', conns, processes, most),
       'fewer relay.Config.Workers with SetMaxOpenConns, PgBouncer in transaction mode before the server ' ||
       '(if it is there already, its default_pool_size decides), or a higher max_connections, which takes a restart'
  FROM together, server WHERE conns > most`
