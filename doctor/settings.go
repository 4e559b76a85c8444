package doctor

import (
	"context"
	"slices"
	"strings"
	"time"
)

// The settings of the server, this database, and the roles that may write tasks; timeouts in
// microseconds. Other settings are not read: an app may keep secrets there. Of the settings that
// clients send when they connect, only the doctor's own are visible.
const settingsSQL = `/* outbox: settings of sessions */
WITH known AS (SELECT unnest(ARRAY['statement_timeout', 'lock_timeout', 'idle_session_timeout', 'transaction_timeout',
                                   'default_transaction_read_only', 'session_replication_role', 'client_encoding']) AS name),
given AS (
  SELECT s.name, s.reset_val || COALESCE(s.unit, '') AS value, 'on the server' AS scope, '' AS reset, true AS relays
    FROM pg_settings s JOIN known USING (name)
   WHERE s.source IN ('default', 'configuration file', 'command line', 'environment variable', 'global')
  UNION ALL
  SELECT s.name, s.reset_val || COALESCE(s.unit, ''),
         'in the connection string of the doctor', 'take it out where a relay has it too', true
    FROM pg_settings s JOIN known USING (name) WHERE s.source = 'client'
  UNION ALL
  SELECT k.name, split_part(c.setting, '=', 2),
         CASE WHEN r.setrole = 0 THEN format('for the database %I', current_database())
              WHEN r.setdatabase = 0 THEN format('for the role %s', r.setrole::regrole)
              ELSE format('for the role %s in the database %I', r.setrole::regrole, current_database()) END,
         CASE WHEN r.setrole = 0 THEN format('ALTER DATABASE %I RESET %s', current_database(), k.name)
              WHEN r.setdatabase = 0 THEN format('ALTER ROLE %s RESET %s', r.setrole::regrole, k.name)
              ELSE format('ALTER ROLE %s IN DATABASE %I RESET %s', r.setrole::regrole, current_database(), k.name) END,
         r.setrole = 0 OR has_table_privilege(r.setrole, 'outbox.task', 'DELETE')
    FROM pg_db_role_setting r, unnest(r.setconfig) AS c (setting), known k
   WHERE r.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
     AND k.name = split_part(c.setting, '=', 1)
     AND (r.setrole = 0 OR has_any_column_privilege(r.setrole, 'outbox.task', 'INSERT')))
SELECT name, value, scope, reset, relays,
       CASE WHEN name NOT LIKE '%timeout' THEN 0
            WHEN value ~ '^[0-9]+$' THEN value::bigint * 1000
            ELSE (extract(epoch FROM value::interval) * 1000000)::bigint END
  FROM given ORDER BY name, scope`

// timeouts are the least that relays need. Relays set the timeouts of their own transactions while a
// handler runs; their other statements take up to these times.
var timeouts = map[string]struct {
	least    time.Duration
	what, do string
}{
	"statement_timeout": {5 * time.Second, "it may end statements of the relays that claim, poll or clean up",
		"at least 30s"},
	"lock_timeout": {time.Second,
		"writes of relays, and enqueues with a unique key, may fail after a short wait", "at least 10s"},
	"transaction_timeout": {5 * time.Second, "it ends connections of relays that claim, poll or clean up; " +
		"it is lifted for handlers, task.Complete and schema.Migrate", "at least 30s"},
	"idle_session_timeout": {20 * time.Second, // the connection of ListenDSN sends something every 15 s
		"it ends the relays' connections for LISTEN again and again, and tasks enqueued meanwhile wait for a poll",
		"more than 20s"},
}

func checkSettings(ctx context.Context, v *visit) error {
	var name, value, scope, reset string
	var relays bool
	var timeout span
	return v.each(ctx, settingsSQL, nil, []any{&name, &value, &scope, &reset, &relays, &timeout}, func() {
		add := func(severity Severity, what, do string) {
			v.add("session-settings", severity, name, name+" is "+value+" "+scope+": "+what, do)
		}
		if reset == "" {
			reset = "ALTER SYSTEM RESET " + name + ", then SELECT pg_reload_conf()"
		}
		of := timeouts[name]
		switch {
		case name == "session_replication_role" && value == "replica":
			add(Critical, "triggers do not fire, and "+onTriggers, reset)
		case name == "client_encoding" &&
			!slices.Contains([]string{"utf8", "unicode"}, strings.ToLower(strings.ReplaceAll(value, "-", ""))):
			add(Warning, "pgx sends UTF-8 all the same, so text beyond ASCII is stored as other characters; lib/pq sets UTF8 itself", reset)
		case name == "default_transaction_read_only" && slices.Contains([]string{"on", "true", "yes", "1"}, value):
			add(Warning, "relays do not start, and schema.Migrate refuses; transactions without READ WRITE, as on pgx, "+
				"fail with SQLSTATE 25006, enqueues among them", reset)
		case !relays || timeout.Duration <= 0:
		case timeout.Duration < of.least:
			add(Warning, of.what, reset+", or "+of.do+" for the relays' role")
		case name == "idle_session_timeout":
			add(Info, "the server ends idle connections of pools",
				"set a shorter ConnMaxIdleTime of the pools: they then end them themselves")
		}
	})
}
