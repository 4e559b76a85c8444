package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

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
SELECT 'server off' AS fault, name, source, quote_ident(current_database())
  FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND NOT setting::boolean
 UNION ALL
SELECT 'server slow', name, (setting::bigint * interval '1 second')::text, ''
  FROM pg_settings WHERE name = 'autovacuum_naptime' AND setting::bigint > 600
 UNION ALL
SELECT 'table off', name, '', '' FROM option WHERE key = 'autovacuum_enabled' AND NOT value::boolean
 UNION ALL
SELECT 'table slow', name, threshold::text, ''
  FROM hot
 WHERE to_regclass(format('%I.%I', $1::text, name)) IS NOT NULL
   AND (NOT EXISTS (SELECT 1 FROM option o
                     WHERE o.name = hot.name AND key = 'autovacuum_vacuum_scale_factor' AND value::float8 = 0)
     OR EXISTS (SELECT 1 FROM option o
                 WHERE o.name = hot.name AND (key = 'autovacuum_vacuum_threshold' AND value::bigint > 50000
                                           OR key = 'autovacuum_vacuum_cost_delay' AND value::float8 > 2)))
 ORDER BY 1, 2`

func checkAutovacuum(ctx context.Context, v *visit) error {
	var fault, name, detail, database string
	return v.each(ctx, autovacuumSQL, []any{v.schema}, []any{&fault, &name, &detail, &database}, func() {
		reload := "; then SELECT pg_reload_conf()"
		switch fault {
		case "server off":
			do := "ALTER SYSTEM SET " + name + " = on" + reload
			switch detail {
			case "database", "database user", "user":
				do = fmt.Sprintf("ALTER DATABASE %s RESET %s, or ALTER ROLE … RESET %[2]s: the %[3]s sets it, not the server's files",
					database, name, detail)
			case "command line":
				do = "start the server without it: it is set on the command line, which overrides the server's files"
			}
			v.add("autovacuum", Critical, name, name+" is off: dead rows pile up and make claims slow", do)
		case "server slow":
			v.add("autovacuum", Warning, name, name+" is "+detail+": dead rows pile up in between and make claims slow",
				"ALTER SYSTEM SET "+name+" = '1min'"+reload)
		case "table off":
			v.add("autovacuum", Warning, name,
				"autovacuum is off for the table "+name+": its dead rows pile up and make claims slow",
				"ALTER TABLE "+v.name(name)+" RESET (autovacuum_enabled)")
		case "table slow":
			v.add("autovacuum", Warning, name,
				"the autovacuum settings of the table "+name+" are not those of the migrations: vacuum comes late",
				fmt.Sprintf("ALTER TABLE %s SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = %s, "+
					"autovacuum_vacuum_cost_delay = 0)", v.name(name), detail))
		}
	})
}

// lateVacuum is the time without a vacuum after which many dead rows are a warning. Autovacuum
// looks once a minute by default.
const lateVacuum = 10 * time.Minute

// tableStats are the statistics of a table. Claims read a hot table, and its rows come and go.
type tableStats struct {
	name       string
	hot        bool
	live, dead int64
	vacuumed   sql.NullInt64 // µs ago
}

const tableStatsSQL = `/* outbox: dead rows */
SELECT relname, relname IN ('task', 'running', 'counter_log', 'headless_key', 'unique_key', 'slot', 'bucket'),
       n_live_tup, n_dead_tup,
       (extract(epoch FROM clock_timestamp() - GREATEST(last_vacuum, last_autovacuum)) * 1000000)::bigint
  FROM pg_stat_all_tables WHERE schemaname = $1 ORDER BY n_dead_tup DESC, relname`

func (v *visit) tableStats(ctx context.Context) (out []tableStats, err error) {
	var t tableStats
	into := []any{&t.name, &t.hot, &t.live, &t.dead, &t.vacuumed}
	err = v.each(ctx, tableStatsSQL, []any{v.schema}, into, func() { out = append(out, t) })
	return out, err
}

func checkDeadRows(ctx context.Context, v *visit) error {
	tables, err := v.tableStats(ctx)
	for _, t := range tables {
		if t.dead < v.settings.dead {
			continue
		}
		severity, when := Warning, "never vacuumed"
		do := "VACUUM (ANALYZE) " + v.name(t.name) +
			"; see autovacuum, and whether other tables keep its workers busy (autovacuum_max_workers)"
		if ago := time.Duration(t.vacuumed.Int64) * time.Microsecond; t.vacuumed.Valid {
			when = "last vacuumed " + said(ago) + " ago"
			if ago <= lateVacuum {
				severity, do = Info, "nothing, if this is the work of a minute; else see held-transaction"
			}
		}
		v.add("dead-rows", severity, t.name,
			fmt.Sprintf("the table %s has %d dead and %d live rows, and was %s", t.name, t.dead, t.live, when), do)
	}
	return err
}
