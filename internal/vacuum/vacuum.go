// Package vacuum reads what keeps PostgreSQL's vacuum from removing the outbox's dead rows, for
// package doctor. Its statements only read.
package vacuum

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Querier is what the functions need.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Kinds of holders.
const (
	Session  = "session"
	Prepared = "prepared transaction"
	Slot     = "replication slot"
	Standby  = "standby"
)

// Holder is somebody whose snapshot or transaction id keeps dead rows, or a session that is idle in
// a transaction and keeps none.
type Holder struct {
	Kind     string
	ID       string // a pid, the identifier of a prepared transaction, the name of a slot
	Quoted   string // ID as a literal of SQL
	Name     string // the application's, or what the process is
	Role     string // "": not known, or none
	Database string // "": of no database
	State    string // of a session: as in pg_stat_activity; of a slot: active or inactive; "": not known
	Here     bool   // it is in this database
	Holds    bool   // dead rows
	Behind   int64  // transactions begun since; 0 if it holds nothing
	Aged     bool   // Age is known: members of pg_read_all_stats see that of other roles' sessions
	Age      time.Duration
}

// A session that has written has no snapshot while it idles, but its transaction's id, which is as
// good. What is written in another database comes by way of the snapshots of this one. What vacuum
// itself has open is not in its own way.
const holdersSQL = `/* outbox: who keeps dead rows */
WITH holder AS (
  SELECT 'session' AS kind, a.pid::text AS id, COALESCE(NULLIF(a.application_name, ''), NULLIF(a.backend_type, 'client backend'), 'unnamed' || COALESCE(' at ' || host(a.client_addr), '')) AS name, a.usename::text AS role, a.datname::text AS database,
         a.state, CASE WHEN a.datname = current_database() THEN GREATEST(age(a.backend_xid), age(a.backend_xmin)) ELSE age(a.backend_xid) END AS behind,
         COALESCE(a.xact_start, CASE WHEN a.state LIKE 'idle in transaction%' THEN a.state_change END) AS since -- an aborted one has no xact_start
    FROM pg_stat_activity a
   WHERE a.datid IS NOT NULL AND a.pid <> pg_backend_pid() AND a.leader_pid IS NULL
     AND (a.backend_xid IS NOT NULL OR a.datname = current_database() AND (a.backend_xmin IS NOT NULL OR a.state LIKE 'idle in transaction%'))
     AND NOT EXISTS (SELECT 1 FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
  UNION ALL
  SELECT 'standby', a.pid::text, COALESCE(NULLIF(a.application_name, ''), a.client_addr::text, ''), a.usename::text, NULL, a.state, age(a.backend_xmin), NULL
    FROM pg_stat_activity a
   WHERE a.datid IS NULL AND a.backend_xmin IS NOT NULL AND EXISTS (SELECT 1 FROM pg_stat_get_wal_senders() w WHERE w.pid = a.pid)
  UNION ALL
  SELECT 'replication slot', slot_name::text, slot_type, NULL, database::text, CASE WHEN active THEN 'active' ELSE 'inactive' END, age(xmin), NULL
    FROM pg_replication_slots WHERE xmin IS NOT NULL
  UNION ALL
  SELECT 'prepared transaction', gid, '', owner::text, database::text, '', age(transaction), prepared FROM pg_prepared_xacts)
SELECT kind, id, quote_literal(id), name, COALESCE(role, ''), COALESCE(database, ''), COALESCE(state, ''), COALESCE(database = current_database(), false),
       behind, (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint
  FROM holder ORDER BY behind DESC NULLS LAST, since NULLS LAST, id LIMIT 100`

// Holders are those who keep dead rows, the one whose horizon is furthest back first, and then
// sessions that are idle in a transaction: a hundred at most. Any role may ask; of other roles'
// sessions it sees the state and the age as a member of pg_read_all_stats only, and those that keep
// nothing not at all else.
func Holders(ctx context.Context, q Querier) ([]Holder, error) {
	rows, err := q.QueryContext(ctx, holdersSQL)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Holder
	for rows.Next() {
		var h Holder
		var behind, age sql.NullInt64
		if err := rows.Scan(&h.Kind, &h.ID, &h.Quoted, &h.Name, &h.Role, &h.Database, &h.State, &h.Here, &behind, &age); err != nil {
			return nil, err
		}
		h.Holds, h.Behind = behind.Valid, behind.Int64
		h.Aged, h.Age = age.Valid, time.Duration(age.Int64)*time.Microsecond
		out = append(out, h)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// What the tables' statistics say. Hot ones are those that claims walk over and whose rows come and
// go.
const tablesSQL = `/* outbox: dead rows */
SELECT s.relname, s.relname IN ('task', 'running', 'counter_log', 'headless_key', 'unique_key', 'slot', 'bucket'), s.n_live_tup, s.n_dead_tup,
       (extract(epoch FROM clock_timestamp() - GREATEST(s.last_vacuum, s.last_autovacuum)) * 1000000)::bigint
  FROM pg_stat_all_tables s WHERE s.schemaname = $1 ORDER BY s.n_dead_tup DESC, s.relname`

// Table is what the statistics say of a table.
type Table struct {
	Name       string
	Hot        bool // its dead rows make claims slow
	Live, Dead int64
	Vacuumed   bool // ever, as far as the statistics go back
	Since      time.Duration
}

// Tables are those of a schema, those with the most dead rows first.
func Tables(ctx context.Context, q Querier, schema string) ([]Table, error) {
	rows, err := q.QueryContext(ctx, tablesSQL, schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Table
	for rows.Next() {
		var t Table
		var since sql.NullInt64
		if err := rows.Scan(&t.Name, &t.Hot, &t.Live, &t.Dead, &since); err != nil {
			return nil, err
		}
		t.Vacuumed, t.Since = since.Valid, time.Duration(since.Int64)*time.Microsecond
		out = append(out, t)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// Faults of settings.
const (
	ServerOff = "server" // autovacuum or track_counts is off
	TableOff  = "off"    // autovacuum_enabled is off for the table
	Changed   = "changed"
)

// The hot tables live on vacuum's coming early, as the migrations have it: by a threshold, however
// large the table is, and without pauses.
const settingsSQL = `/* outbox: settings of autovacuum */
SELECT 'server', s.name, true FROM pg_settings s WHERE s.name IN ('autovacuum', 'track_counts') AND NOT s.setting::boolean
UNION ALL
SELECT 'off', c.relname, c.relname IN ('task', 'running', 'counter_log') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r'
   AND EXISTS (SELECT 1 FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
UNION ALL
SELECT 'changed', c.relname, c.relname IN ('task', 'running', 'counter_log') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname IN ('task', 'running', 'counter_log', 'counter', 'headless_key', 'unique_key', 'slot', 'bucket')
   AND (NOT EXISTS (SELECT 1 FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_vacuum_scale_factor' AND option_value::float8 = 0)
     OR EXISTS (SELECT 1 FROM pg_options_to_table(c.reloptions)
                 WHERE option_name = 'autovacuum_vacuum_threshold' AND option_value::bigint > 50000 OR option_name = 'autovacuum_vacuum_cost_delay' AND option_value::float8 > 2))
ORDER BY 1 DESC, 2`

// Setting is one that keeps autovacuum from its work.
type Setting struct {
	Fault string
	Name  string // of the table, or of the server's setting
	Hot   bool   // it is about all tables, or one of those that claims walk over and that grow fastest
}

// Settings are those that are wrong, of the server and of a schema's tables.
func Settings(ctx context.Context, q Querier, schema string) ([]Setting, error) {
	rows, err := q.QueryContext(ctx, settingsSQL, schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Setting
	for rows.Next() {
		var s Setting
		if err := rows.Scan(&s.Fault, &s.Name, &s.Hot); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
