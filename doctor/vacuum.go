package doctor

// Claims stay fast only if autovacuum comes early. The migrations therefore give the hot tables a
// threshold that does not grow with the table, and no pauses.
const autovacuumSQL = `/* outbox: settings of autovacuum */
WITH hot (name, threshold) AS (VALUES
  ('task', 1000), ('running', 1000), ('counter_log', 5000), ('counter', 500),
  ('headless_key', 1000), ('unique_key', 1000), ('slot', 500), ('bucket', 500)),
option AS (
  SELECT c.relname AS name, o.option_name AS key, o.option_value AS value
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_options_to_table(c.reloptions) o
   WHERE n.nspname = $1 AND c.relkind = 'r')
SELECT 'critical', name, name || ' is off: dead rows pile up and make claims slow',
       CASE WHEN source LIKE 'database%' OR source = 'user'
            THEN format('ALTER DATABASE %I RESET %s, or ALTER ROLE … RESET %2$s: the %s sets it, ' ||
                        'not the server''s files',
                        current_database(), name, source)
            WHEN source = 'command line'
            THEN 'start the server without it: it is set on the command line, which overrides the server''s files'
            ELSE format('ALTER SYSTEM SET %s = on; then SELECT pg_reload_conf()', name) END
  FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND NOT setting::boolean
 UNION ALL
SELECT 'warning', name, format('%s is %s: dead rows pile up in between and make claims slow',
                               name, setting::bigint * interval '1 second'),
       format('ALTER SYSTEM SET %s = ''1min''; then SELECT pg_reload_conf()', name)
  FROM pg_settings WHERE name = 'autovacuum_naptime' AND setting::bigint > 600
 UNION ALL
SELECT 'warning', name, format('autovacuum is off for the table %s: its dead rows pile up and make claims slow', name),
       format('ALTER TABLE outbox.%I RESET (autovacuum_enabled)', name)
  FROM option WHERE key = 'autovacuum_enabled' AND NOT value::boolean
 UNION ALL
SELECT 'warning', name,
       format('the autovacuum settings of the table %s are not those of the migrations: vacuum comes late', name),
       format('ALTER TABLE outbox.%I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %s, ' ||
              'autovacuum_vacuum_cost_delay = 0)', name, threshold)
  FROM hot
 WHERE to_regclass(format('%I.%I', $1::text, name)) IS NOT NULL
   AND (NOT EXISTS (SELECT 1 FROM option o
                     WHERE o.name = hot.name AND key = 'autovacuum_vacuum_scale_factor' AND value::float8 = 0)
     OR EXISTS (SELECT 1 FROM option o
                 WHERE o.name = hot.name AND (key = 'autovacuum_vacuum_threshold' AND value::bigint > 50000
                                           OR key = 'autovacuum_vacuum_cost_delay' AND value::float8 > 2)))
 ORDER BY 1, 2`

// Autovacuum looks once a minute by default.
const deadRowsSQL = `/* outbox: dead rows */
SELECT CASE WHEN recent THEN 'info' ELSE 'warning' END, relname,
       format('the table %s has %s dead and %s live rows, and was %s', relname, n_dead_tup, n_live_tup,
              COALESCE('last vacuumed ' || date_trunc('second', since) || ' ago', 'never vacuumed')),
       CASE WHEN recent THEN 'nothing, if this is the work of a minute; else see held-transaction'
            ELSE format('VACUUM (ANALYZE) outbox.%I; see autovacuum, and whether other tables keep its workers busy ' ||
                        '(autovacuum_max_workers)', relname) END
  FROM pg_stat_all_tables
  CROSS JOIN LATERAL (SELECT clock_timestamp() - GREATEST(last_vacuum, last_autovacuum) AS since) AS v
  CROSS JOIN LATERAL (SELECT COALESCE(since <= interval '10 minutes', false) AS recent) AS r
 WHERE schemaname = $1 AND n_dead_tup >= $2::bigint ORDER BY n_dead_tup DESC, relname`
