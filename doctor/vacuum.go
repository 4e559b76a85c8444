package doctor

// vacuumChecks are of dead rows, what keeps them, and what they leave behind.
var vacuumChecks = []check{
	{name: "autovacuum", fine: "it is on, with the outbox's settings for its tables", query: autovacuumSQL,
		args: ofSchema},
	{name: "dead-rows", fine: "autovacuum keeps up", query: deadRowsSQL,
		args: func(s settings) []any { return []any{s.schema, s.dead} }},
	{name: "held-transaction", fine: "no session has held a transaction open for long",
		query: heldTransactionSQL, args: ofHolders},
	{name: "prepared-transaction", fine: "no prepared transaction is old", query: preparedTransactionSQL, args: ofHolders},
	{name: "replication-slot", fine: "no slot keeps dead rows", query: replicationSlotSQL, args: ofHolders},
	{name: "standby-feedback", fine: "no standby keeps dead rows", query: standbyFeedbackSQL, args: ofHolders},
	{name: "lock-wait", fine: "no session waits for a lock on the outbox's tables", query: locksSQL,
		args: func(s settings) []any { return []any{s.schema, s.waited.Microseconds()} }},
	{name: "wraparound", fine: "transaction ids are far from running out", query: wraparoundSQL,
		args: func(s settings) []any { return []any{s.schema, s.old} }},
	{name: "index-bloat", fine: "no index is much larger than its entries", query: indexBloatSQL,
		args: func(s settings) []any { return []any{s.schema, s.bloated} }},
}

func ofHolders(s settings) []any { return []any{s.schema, s.held.Microseconds()} }

// Claims stay fast only if autovacuum comes early. The migrations therefore give the hot tables a
// threshold that does not grow with the table, and no pauses.
const autovacuumSQL = `/* outbox: settings of autovacuum */
WITH hot (name, threshold) AS (VALUES
  ('task', 1000), ('running', 1000), ('counter_log', 5000), ('counter', 500),
  ('headless_key', 1000), ('place_request', 1000), ('unique_key', 1000), ('slot', 500), ('bucket', 500)),
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

// Sessions, prepared transactions, slots and standbys whose snapshot or transaction id keeps dead rows,
// and sessions that are idle in a transaction and keep none. A session that has written has no snapshot
// while it is idle, but its transaction id has the same effect. Writes in another database count by the
// snapshots of this one. VACUUM itself is left out. An aborted transaction has no xact_start. The age is
// unknown of slots, standbys, and other roles' sessions without pg_read_all_stats. Claims read the hot
// tables, and from 10,000 dead rows on a minute is long: a Tx handler may not take longer.
const holdersSQL = `/* outbox: who keeps dead rows */
WITH dead AS (
  SELECT COALESCE(max(n_dead_tup), 0) AS rows FROM pg_stat_all_tables
   WHERE schemaname = $1
     AND relname IN ('task', 'running', 'counter_log', 'headless_key', 'place_request', 'unique_key',
                     'slot', 'bucket')),
holder AS (
  SELECT 'session' AS kind, a.pid::text AS id,
         COALESCE(NULLIF(a.application_name, ''), NULLIF(a.backend_type, 'client backend'),
                  'unnamed' || COALESCE(' at ' || host(a.client_addr), '')) AS name,
         a.usename::text AS role, a.datname::text AS database, a.state,
         CASE WHEN a.datname = current_database() THEN GREATEST(age(a.backend_xid), age(a.backend_xmin))
              ELSE age(a.backend_xid) END AS behind,
         COALESCE(a.xact_start, CASE WHEN a.state LIKE 'idle in transaction%' THEN a.state_change END) AS since
    FROM pg_stat_activity a
   WHERE a.datid IS NOT NULL AND a.pid <> pg_backend_pid() AND a.leader_pid IS NULL
     AND (a.backend_xid IS NOT NULL
       OR a.datname = current_database() AND (a.backend_xmin IS NOT NULL OR a.state LIKE 'idle in transaction%'))
     AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
  UNION ALL
  SELECT 'standby', a.pid::text, COALESCE(NULLIF(a.application_name, ''), a.client_addr::text, ''),
         a.usename::text, NULL, a.state, age(a.backend_xmin), NULL
    FROM pg_stat_activity a
   WHERE a.datid IS NULL AND a.backend_xmin IS NOT NULL
     AND EXISTS (SELECT 1 FROM pg_stat_get_wal_senders() w WHERE w.pid = a.pid)
  UNION ALL
  SELECT 'slot', slot_name::text, slot_type, NULL, database::text,
         CASE WHEN active THEN 'active' ELSE 'inactive' END, age(xmin), NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL
  UNION ALL
  SELECT 'prepared', gid, '', owner::text, database::text, '', age(transaction), prepared FROM pg_prepared_xacts),
old AS (
  SELECT h.*, database IS DISTINCT FROM current_database() AS elsewhere,
         CASE WHEN behind IS NOT NULL AND d.rows >= 1000000 THEN 'critical' ELSE 'warning' END AS severity,
         COALESCE(' for ' || date_trunc('second', lasted), '') AS lasting,
         CASE WHEN behind IS NULL THEN ', and keeps its locks and its connection'
              ELSE format(', and vacuum can remove no rows that died since, %s transactions ago', behind) ||
                   CASE WHEN d.rows > 0 THEN format(' (%s dead rows in one table of the outbox)', d.rows) ELSE '' END
              END AS effect
    FROM (SELECT *, clock_timestamp() - since AS lasted FROM holder) AS h, dead AS d,
         LATERAL (SELECT $2::bigint * interval '1 microsecond' AS held) AS s
   WHERE lasted >= CASE WHEN d.rows >= 10000 THEN LEAST(s.held, interval '1 minute') ELSE s.held END
      OR lasted IS NULL AND (behind >= 50000 OR kind = 'slot' AND state = 'inactive')
   ORDER BY behind DESC NULLS LAST, since NULLS LAST, id LIMIT 100)
`

const heldTransactionSQL = holdersSQL + `
SELECT severity, 'pid ' || id, format('the session of pid %s%s%s has been %s%s%s', id,
         format(' (role %s, application "%s")', role, name),
         CASE WHEN elsewhere THEN ' in the database ' || database END,
         CASE COALESCE(state, '') WHEN 'active' THEN 'active in a transaction'
              WHEN '' THEN 'in a transaction' ELSE state END,
         lasting, effect),
       format('find its purpose and end it there, or SELECT pg_terminate_backend(%s)', id) ||
       CASE state WHEN 'active' THEN '' ELSE format('; against the next one: ' ||
         'ALTER DATABASE %I SET idle_in_transaction_session_timeout = ''5min''', database) END
  FROM old WHERE kind = 'session'
 UNION ALL
SELECT 'unknown', '', 'checked in part: this role sees neither the age nor the state of other roles'' sessions',
       format('GRANT pg_monitor TO %I', current_user)
 WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')
   AND EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.datname = current_database() AND a.usesysid IS NOT NULL
                AND NOT pg_has_role(a.usesysid, 'USAGE'))`

const preparedTransactionSQL = holdersSQL + `
SELECT severity, id, format('a transaction of the role %s in the database %s has been prepared%s%s',
                            role, database, lasting, effect),
       format('ask its transaction manager: COMMIT PREPARED %L or ROLLBACK PREPARED %1$L', id) ||
       CASE WHEN elsewhere THEN ', in the database ' || database ELSE '' END
  FROM old WHERE kind = 'prepared'`

const replicationSlotSQL = holdersSQL + `
SELECT severity, id, format('the %s replication slot %s keeps the snapshot of a standby%s', state, id, effect),
       CASE state WHEN 'active'
         THEN 'find the reason for its standby''s lag: mostly a long query there, with hot_standby_feedback'
         ELSE format('start its standby again; or, if it will not return, SELECT pg_drop_replication_slot(%L)', id) END
  FROM old WHERE kind = 'slot'`

const standbyFeedbackSQL = holdersSQL + `
SELECT severity, name, format('the standby %s (pid %s) sends the snapshot of an old query%s', name, id, effect),
       'end the query on the standby, or set hot_standby_feedback = off there'
  FROM old WHERE kind = 'standby'`

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

// The needed size is that of a new index: entries with keys as wide as the statistics say, in pages
// that are nine tenths full. The number of entries is at most that of the table's rows, dead ones
// included, so the bloat of an index on few of the rows may be missed. An index whose table was never
// vacuumed or analyzed is not judged.
const indexBloatSQL = `/* outbox: sizes of indexes */
SELECT 'warning', i.relname,
       format('the index %s has %s MB for at most %s entries, which need about %s MB',
              i.relname, pg_relation_size(i.oid) >> 20, x.entries, needed::bigint >> 20),
       format('REINDEX INDEX CONCURRENTLY outbox.%I, or admin.Client.Reindex (outbox reindex) for all indexes; ' ||
              'relays go on meanwhile', i.relname)
  FROM pg_index g JOIN pg_class i ON i.oid = g.indexrelid JOIN pg_class t ON t.oid = g.indrelid
  JOIN pg_namespace n ON n.oid = t.relnamespace
  LEFT JOIN pg_stat_all_tables s ON s.relid = t.oid
  CROSS JOIN LATERAL (
    SELECT GREATEST(i.reltuples, COALESCE(s.n_live_tup + s.n_dead_tup, 0))::bigint AS entries,
           (SELECT sum(COALESCE(w.avg_width, CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END)) FROM pg_attribute a
              LEFT JOIN pg_stats w ON w.schemaname = n.nspname AND w.tablename = t.relname AND w.attname = a.attname
             WHERE a.attrelid = i.oid AND a.attnum > 0)::float8 AS width,
           current_setting('block_size')::float8 AS page) AS x
  CROSS JOIN LATERAL (SELECT ceil(x.entries * (x.width + 20) / (x.page * 0.9)) * x.page AS needed) AS y
 WHERE n.nspname = $1 AND g.indisvalid AND t.reltuples >= 0 AND pg_relation_size(i.oid) >= $2::bigint
   AND pg_relation_size(i.oid) > 4 * needed
 ORDER BY pg_relation_size(i.oid) DESC, 2`
