package doctor

import "strings"

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
