package relay

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

const (
	bloatInterval = time.Minute
	bloatRepeat   = 15 * time.Minute // between two warnings
	bloatDead     = 10_000           // dead tuples of one table
	bloatSnapshot = 5 * time.Minute  // how old a snapshot must be that keeps them
	bloatBehind   = 50_000           // or how many transactions behind, where its age is not known
)

// What vacuum cannot clean up while somebody's snapshot may still see it, and who that is: the one whose horizon
// is furthest back. Sessions of other roles show their names and ages to members of pg_read_all_stats only.
const bloatSQL = `/* outbox: bloat */
WITH dead AS (
  SELECT relname, n_dead_tup FROM pg_stat_all_tables
   WHERE schemaname = $1 AND relname IN ('task', 'running', 'counter_log', 'turn', 'unique_key', 'slot', 'bucket') ORDER BY n_dead_tup DESC LIMIT 1),
holder AS (
  SELECT 'session' AS kind, pid::text AS id, application_name AS name, age(backend_xmin) AS behind, xact_start AS since
    FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
  UNION ALL
  SELECT 'replication slot', slot_name::text, COALESCE(database::text, ''), age(xmin), NULL FROM pg_replication_slots WHERE xmin IS NOT NULL
  UNION ALL
  SELECT 'prepared transaction', gid, owner::text, age(transaction), prepared FROM pg_prepared_xacts WHERE database = current_database()),
furthest AS (
  SELECT kind, id, name, behind, (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint AS age FROM holder
   ORDER BY behind DESC, since NULLS LAST LIMIT 1)
SELECT dead.relname, dead.n_dead_tup, furthest.kind, furthest.id, furthest.name, furthest.behind, furthest.age FROM dead LEFT JOIN furthest ON true`

// The hot tables live on vacuum's coming early; their settings are the migrations'.
const autovacuumSQL = `/* outbox: settings of autovacuum */
SELECT 'autovacuum is off on this server' WHERE NOT current_setting('autovacuum')::boolean OR NOT current_setting('track_counts')::boolean
UNION ALL
SELECT 'autovacuum is off for the table ' || relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
 WHERE nspname = $1 AND relname IN ('task', 'running', 'counter_log')
   AND EXISTS (SELECT 1 FROM pg_options_to_table(reloptions) WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
UNION ALL
SELECT 'the autovacuum settings of the table ' || relname || ' are not the outbox''s: it will be vacuumed late' FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
 WHERE nspname = $1 AND relname IN ('task', 'running', 'counter_log')
   AND NOT EXISTS (SELECT 1 FROM pg_options_to_table(reloptions) WHERE option_name = 'autovacuum_vacuum_scale_factor' AND option_value::float8 = 0)`

// bloat looks for what keeps dead tuples in the hot tables, where claims have to walk over them, and warns with its
// name. It ends nothing: that is for people to decide.
type bloat struct {
	dead, behind int64
	snapshot     time.Duration
}

func checkBloat(ctx context.Context, r *Relay, tx *sql.Tx) (next time.Duration, err error) {
	return bloat{bloatDead, bloatBehind, bloatSnapshot}.check(ctx, r, tx)
}

func (b bloat) check(ctx context.Context, r *Relay, tx *sql.Tx) (next time.Duration, err error) {
	next = bloatInterval
	wrong, err := texts(tx.QueryContext(ctx, autovacuumSQL, r.config.Schema))
	if err != nil {
		return 0, err
	}
	if len(wrong) > 0 {
		r.log.Warn("outbox: dead rows will pile up in the hot tables and make claims slow: "+strings.Join(wrong, "; "), "schema", r.config.Schema)
		next = bloatRepeat
	}
	var table string
	var dead int64
	var kind, id, name sql.NullString
	var behind, age sql.NullInt64
	err = tx.QueryRowContext(ctx, bloatSQL, r.config.Schema).Scan(&table, &dead, &kind, &id, &name, &behind, &age)
	if err != nil || dead < b.dead {
		return next, err
	}
	held := time.Duration(age.Int64) * time.Microsecond
	if !kind.Valid || age.Valid && held < b.snapshot || !age.Valid && behind.Int64 < b.behind {
		return next, nil
	}
	attrs := []any{"table", table, "dead_rows", dead, "transactions_behind", behind.Int64}
	switch kind.String {
	case "session":
		attrs = append(attrs, "pid", id.String, "application_name", name.String)
		if !age.Valid {
			attrs = append(attrs, "hint", "members of pg_read_all_stats see its name and age")
		}
	case "replication slot":
		attrs = append(attrs, "slot", id.String)
	default:
		attrs = append(attrs, "gid", id.String, "owner", name.String)
	}
	if age.Valid {
		attrs = append(attrs, "age", held.Round(time.Second))
	}
	r.log.Warn("outbox: vacuum cannot remove dead rows, which make claims slow, while a "+kind.String+" may still see them", attrs...)
	return bloatRepeat, nil
}
