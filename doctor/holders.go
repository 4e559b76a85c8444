package doctor

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
     AND relname IN ('task', 'running', 'counter_log', 'headless_key', 'unique_key', 'slot', 'bucket')),
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
