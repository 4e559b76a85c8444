package settings_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

// groups are settings that a database, a role or a connection string may carry, as many together as
// do not hide each other. They lack those that the doctor reports: a read-only default, triggers
// that do not fire, and timeouts that are too short for a relay.
var groups = map[string][]string{
	"texts and times": {
		"standard_conforming_strings = off", "backslash_quote = off", "escape_string_warning = on", "array_nulls = off",
		"transform_null_equals = on", "quote_all_identifiers = on", "bytea_output = escape", "xmlbinary = hex", "xmloption = document",
		"extra_float_digits = -15", "lc_messages = 'C'", "lc_numeric = 'C'", "lc_monetary = 'C'", "client_min_messages = debug1",
		"DateStyle = 'German, DMY'", "IntervalStyle = sql_standard", "TimeZone = 'Asia/Kathmandu'", "timezone_abbreviations = 'India'",
		"search_path = elsewhere, public, pg_catalog",
	},
	"repeatable read, plans without indexes": {
		"default_transaction_isolation = 'repeatable read'", "synchronous_commit = off", "row_security = off", "check_function_bodies = off",
		"statement_timeout = '60s'", "lock_timeout = '30s'", "idle_in_transaction_session_timeout = '60s'", "transaction_timeout = '60s'",
		"idle_session_timeout = '60s'", "deadlock_timeout = '100ms'", "lo_compat_privileges = on", "session_replication_role = origin",
		"enable_indexscan = off", "enable_indexonlyscan = off", "enable_bitmapscan = off", "enable_hashjoin = off", "enable_nestloop = off",
		"enable_hashagg = off", "enable_material = off", "plan_cache_mode = force_custom_plan", "random_page_cost = 1000", "jit = on",
		"cursor_tuple_fraction = 1", "from_collapse_limit = 1", "join_collapse_limit = 1", "constraint_exclusion = on", "work_mem = '64kB'",
		"TimeZone = '-13:37'", "DateStyle = 'SQL, MDY'",
	},
	"serializable, plans without scans": {
		"default_transaction_isolation = serializable", "default_transaction_deferrable = on", "search_path = ''",
		"default_toast_compression = pglz", "default_tablespace = 'pg_default'", "default_table_access_method = heap",
		"enable_seqscan = off", "enable_sort = off", "enable_mergejoin = off", "enable_tidscan = off", "enable_gathermerge = off",
		"plan_cache_mode = force_generic_plan", "jit = off", "parallel_setup_cost = 0", "parallel_tuple_cost = 0", "geqo_threshold = 2",
		"min_parallel_table_scan_size = 0", "hash_mem_multiplier = 1", "default_statistics_target = 1", "track_counts = off",
	},
}

// I13: the same calls have the same outcomes, whatever the database's settings are.
func TestSQLMeansTheSameUnderEverySetting(t *testing.T) {
	drivers := []string{"postgres", "pgx"}
	if !needs.InCI() {
		drivers = drivers[:1]
	}
	for _, driver := range drivers {
		want := outcomes(t, driver, nil)
		tests := map[string]func(*testing.T){}
		for name, settings := range groups {
			tests[driver+" "+name] = func(t *testing.T) {
				got := outcomes(t, driver, settings)
				for i := range min(len(got), len(want)) {
					if got[i] != want[i] {
						t.Errorf("after %s: got\n%s\nwant\n%s", got[max(i-1, 0)], got[i], want[i])
					}
				}
				if len(got) != len(want) {
					t.Errorf("%d outcomes, want %d", len(got), len(want))
				}
			}
		}
		relaytest.Together(t, tests)
	}
}

// outcomes are those of the library's calls in a database that has the settings.
func outcomes(t *testing.T, driver string, settings []string) []string {
	t.Helper()
	address := pgtest.Database(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	admin := relaytest.Direct(t, address, "postgres")
	admin.Do(t, elsewhere)
	for _, s := range settings {
		name, _, _ := strings.Cut(s, " ")
		// not all versions have all
		if admin.Int(t, `SELECT count(*) FROM pg_settings WHERE lower(name) = lower($1)`, name) == 1 {
			admin.Do(t, `ALTER DATABASE `+strings.TrimPrefix(u.Path, "/")+` SET `+s)
		}
	}
	admin.Close()
	db := relaytest.Open(t, address, driver)
	calls := &calls{t: t, ctx: context.Background(), db: db, address: address}
	calls.all()
	db.Invariants(t)
	db.Idle(t)
	return calls.lines
}

// elsewhere is a schema that has what a statement would find that names no schema.
const elsewhere = `CREATE SCHEMA elsewhere;
	DO $$ DECLARE name text; BEGIN
		FOREACH name IN ARRAY '{task,dead_task,done_task,unique_key,headless_key,counter,counter_log,running,relay,schedule,inbox,audit,
			sample,slot,bucket,task_type,origin,identity,unowned_schedule,cancel,maintenance,migration,promote_lock,keyed_task,added,removed}'::text[] LOOP
			EXECUTE format('CREATE TABLE elsewhere.%I ()', name);
		END LOOP;
	END $$`

// calls are the library's, with a line for what each came to.
type calls struct {
	t       *testing.T
	ctx     context.Context
	db      *relaytest.Database
	address string
	lines   []string
}

func (c *calls) say(what string, values ...any) {
	c.t.Helper()
	for _, v := range values {
		if err, ok := v.(error); ok && err != nil {
			c.t.Errorf("%s: %v", what, err)
		}
	}
	c.lines = append(c.lines, what+": "+fmt.Sprint(values...))
}

// dump is what a table has, without times, tokens and other values that always differ.
func (c *calls) dump(table string) {
	c.t.Helper()
	plain := relaytest.Direct(c.t,
		c.address+"&options="+url.QueryEscape(`-c search_path= -c array_nulls=on -c DateStyle=ISO -c TimeZone=UTC`), "postgres")
	defer plain.Close()
	text := plain.Text(c.t, `SELECT COALESCE(string_agg(line, chr(10) ORDER BY line), '') FROM (
		SELECT (SELECT string_agg(e.key || '=' || CASE WHEN e.key ~
		'(_at|_until|^at|^timeline|task_id|token|relay_id|next_at|last_at)$' THEN '' ELSE e.value END, ' ' ORDER BY e.key)
		          FROM jsonb_each_text(to_jsonb(t)) AS e WHERE e.value IS NOT NULL) AS line FROM outbox.`+table+` t) AS l`)
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	for _, line := range lines {
		c.say(table, line)
	}
}

// A deferrable transaction that only reads would wait for the app's serializable ones, if it were
// serializable.
func TestCheckWaitsForNoTransactionOfTheApp(t *testing.T) {
	t.Parallel()
	address := relaytest.Migrated(t)
	set := "&options=" + url.QueryEscape("-c default_transaction_isolation=serializable -c default_transaction_deferrable=on -c statement_timeout=5s")
	db := relaytest.Open(t, address+set, "postgres")
	db.Hold(t, `INSERT INTO outbox.task (task_type) VALUES ('A')`)
	if err := schema.Check(context.Background(), db); err != nil {
		t.Error(err)
	}
}
