package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// holder is a session, prepared transaction, slot or standby whose snapshot or transaction id keeps
// dead rows, or a session that is idle in a transaction and keeps none.
type holder struct {
	kind     string
	id       string // a pid, the identifier of a prepared transaction, the name of a slot
	quoted   string // id as a literal of SQL
	name     string // the application's, or the backend's type
	role     string // "": unknown, or none
	database string // "": of no database
	state    string // of a session: as in pg_stat_activity; of a slot: active or inactive; "": unknown
	here     bool   // in this database
	behind   sql.NullInt64
	age      sql.NullInt64 // µs; unknown of other roles' sessions without pg_read_all_stats
}

// A session that has written has no snapshot while it is idle, but its transaction id has the same
// effect. Writes in another database count by the snapshots of this one. VACUUM itself is left out.
const holdersSQL = `/* outbox: who keeps dead rows */
WITH holder AS (
  SELECT 'session' AS kind, a.pid::text AS id,
         COALESCE(NULLIF(a.application_name, ''), NULLIF(a.backend_type, 'client backend'),
                  'unnamed' || COALESCE(' at ' || host(a.client_addr), '')) AS name,
         a.usename::text AS role, a.datname::text AS database, a.state,
         CASE WHEN a.datname = current_database() THEN GREATEST(age(a.backend_xid), age(a.backend_xmin))
              ELSE age(a.backend_xid) END AS behind,
         -- An aborted transaction has no xact_start.
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
  SELECT 'prepared', gid, '', owner::text, database::text, '', age(transaction), prepared FROM pg_prepared_xacts)
SELECT kind, id, quote_literal(id), name, COALESCE(role, ''), COALESCE(database, ''), COALESCE(state, ''),
       COALESCE(database = current_database(), false), behind,
       (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint
  FROM holder ORDER BY behind DESC NULLS LAST, since NULLS LAST, id LIMIT 100`

const seenSQL = `/* outbox: whether other roles' sessions are seen in full */
SELECT pg_has_role('pg_read_all_stats', 'USAGE')
    OR NOT EXISTS (SELECT 1 FROM pg_stat_activity a
                    WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND NOT pg_has_role(a.usesysid, 'USAGE')),
       quote_ident(current_user)`

// Claims read the hot tables, whose rows come and go.
const hotDeadSQL = `/* outbox: dead rows of the hot tables */
SELECT COALESCE(max(n_dead_tup), 0) FROM pg_stat_all_tables
 WHERE schemaname = $1 AND relname IN ('task', 'running', 'counter_log', 'headless_key', 'unique_key', 'slot', 'bucket')`

func checkHolders(ctx context.Context, v *visit) error {
	var dead int64 // in the hot table that has most
	if err := v.row(ctx, hotDeadSQL, []any{v.schema}, &dead); err != nil {
		return err
	}
	var h holder
	into := []any{&h.kind, &h.id, &h.quoted, &h.name, &h.role, &h.database, &h.state, &h.here, &h.behind, &h.age}
	if err := v.each(ctx, holdersSQL, nil, into, func() { v.judge(h, dead) }); err != nil {
		return err
	}
	var seen bool
	var role string
	if err := v.row(ctx, seenSQL, nil, &seen, &role); err != nil {
		return err
	}
	if !seen {
		v.add("held-transaction", Unknown, "",
			"checked in part: this role sees neither the age nor the state of other roles' sessions",
			"GRANT pg_monitor TO "+role)
	}
	return nil
}

const (
	heldDead   = 10_000      // dead rows in one table, from which on heldFor applies
	heldFor    = time.Minute // longer than a Tx handler may take
	heldBehind = 50_000      // transactions, where the age is unknown
	heldMany   = 1_000_000   // dead rows in one table: claims are slow
)

// judge reports a holder that is old enough.
func (v *visit) judge(h holder, dead int64) {
	limit := v.settings.held
	if dead >= heldDead {
		limit = min(limit, heldFor)
	}
	age := time.Duration(h.age.Int64) * time.Microsecond
	idleSlot := h.kind == "slot" && h.state != "active"
	if h.age.Valid && age < limit || !h.age.Valid && h.behind.Int64 < heldBehind && !idleSlot {
		return
	}
	severity, since := Warning, ""
	if h.behind.Valid && dead >= heldMany {
		severity = Critical
	}
	if h.age.Valid {
		since = " for " + said(age)
	}
	effect := ", and keeps its locks and its connection"
	if h.behind.Valid {
		effect = fmt.Sprintf(", and vacuum can remove no rows that died since, %s ago",
			plural(h.behind.Int64, "transaction"))
		if dead > 0 {
			effect += fmt.Sprintf(" (%s in one table of the outbox)", plural(dead, "dead row"))
		}
	}
	add := func(check, subject, what, do string) { v.add(check, severity, subject, what+effect, do) }
	switch h.kind {
	case "session":
		add("held-transaction", "pid "+h.id, h.session()+since, h.endSession())
	case "prepared":
		do := "COMMIT PREPARED " + h.quoted + " or ROLLBACK PREPARED " + h.quoted
		if !h.here {
			do += ", in the database " + h.database
		}
		add("prepared-transaction", h.id,
			fmt.Sprintf("a transaction of the role %s in the database %s has been prepared%s", h.role, h.database,
				since), do)
	case "slot":
		do := "find the reason for its standby's lag: mostly a long query there, with hot_standby_feedback"
		if idleSlot {
			do = "start its standby again; or, if it will not return, SELECT pg_drop_replication_slot(" + h.quoted + ")"
		}
		add("replication-slot", h.id, fmt.Sprintf("the %s replication slot %s keeps the snapshot of a standby", h.state,
			h.id), do)
	case "standby":
		add("standby-feedback", h.name,
			fmt.Sprintf("the standby %s (pid %s) sends the snapshot of an old query", h.name, h.id),
			"end the query on the standby, or set hot_standby_feedback = off there")
	}
}

// session is a session with its state.
func (h holder) session() string {
	text := "the session of pid " + h.id
	if h.role != "" {
		text += fmt.Sprintf(" (role %s, application %q)", h.role, h.name)
	}
	if !h.here {
		text += " in the database " + h.database
	}
	switch h.state {
	case "active":
		return text + " has been active in a transaction"
	case "":
		return text + " has been in a transaction"
	}
	return text + " has been " + h.state // idle in transaction, …
}

func (h holder) endSession() string {
	do := "find its purpose and end it there, or SELECT pg_terminate_backend(" + h.id + ")"
	if h.state != "active" {
		do += "; against the next one: ALTER DATABASE " + quote(h.database) +
			" SET idle_in_transaction_session_timeout = '5min'"
	}
	return do
}
