package settings_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/inbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
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

// slow makes statements that write take longer than the limit of the relay's sessions, and notes
// the planner's settings under which they run.
const slow = `CREATE TABLE seen (name text, jit text, nestloop text);
	CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
		IF TG_TABLE_NAME IN ('relay', 'schedule', 'headless_key') OR random() < 0.1 THEN PERFORM pg_sleep(0.5); END IF;
		INSERT INTO public.seen VALUES (TG_TABLE_NAME || ' ' || TG_OP, current_setting('jit'), current_setting('enable_nestloop'));
		RETURN NULL;
	END $$;
	DO $$ DECLARE name text; BEGIN
		FOREACH name IN ARRAY '{task,dead_task,done_task,running,relay,schedule,maintenance,cancel,headless_key}'::text[] LOOP
			EXECUTE format('CREATE TRIGGER slow AFTER INSERT OR UPDATE OR DELETE ON outbox.%I EXECUTE FUNCTION public.slow()', name);
		END LOOP;
	END $$`

// A role has a limit for its statements that is too short for a relay, and the planner of its
// database compiles nearly all: the relay sets what it needs, and handlers have what was set.
func TestARelayWorksUnderSettingsThatHinderIt(t *testing.T) {
	tests := map[string]func(*testing.T){}
	for _, driver := range []string{"postgres", "pgx"} {
		tests[driver] = func(t *testing.T) {
			db := relaytest.NewDatabase(t)
			db.Do(t, slow)
			var options []string
			for _, s := range []string{"statement_timeout=300ms", "lock_timeout=1ms", "transaction_timeout=400ms", "jit=on",
				"enable_seqscan=off", "enable_nestloop=off", "enable_sort=off", "enable_hashagg=off", "enable_indexscan=off"} {
				name, _, _ := strings.Cut(s, "=")
				if db.Int(t, `SELECT count(*) FROM pg_settings WHERE name = $1`, name) == 1 {
					options = append(options, s)
				}
			}
			c := &calls{t: t, ctx: t.Context(), db: db, address: db.URL}
			pool := relaytest.Open(t, db.URL+"&"+strings.Join(options, "&"), driver)
			r := relaytest.Run(t, pool.DB, registry(), relay.Config{PollInterval: 50 * time.Millisecond, Workers: 8,
				Schedules: []relay.Schedule{{Name: "often", Timing: relay.Every(time.Hour),
					Task: outbox.TaskSpec{Type: "tx", Payload: payload{"", 1}}}}})
			for _, taskType := range []string{"tx", "group", "batch", "leased", "complete", "tx fails once", "leased fails once",
				"tx dies", "leased dies"} {
				c.in(taskType, func(tx *sql.Tx) (any, error) {
					return outbox.EnqueueMany(c.ctx, tx, []outbox.TaskSpec{{Type: taskType, Payload: payload{"", 1}},
						{Type: taskType, Payload: payload{"", 2}, Options: []outbox.Option{outbox.OrderedBy("k")}},
						{Type: taskType, Payload: payload{"", 3}, Options: []outbox.Option{outbox.OrderedBy("k")}}})
				})
			}
			relaytest.Eventually(t, 2*time.Minute, "all tasks are done or dead", func() bool {
				return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
			})
			if dead := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); dead != 2*3 {
				t.Errorf("%d dead letters, want 6", dead)
			}
			relaytest.Healthy(t, r, "under hostile settings")
			r.Stop()
			r.Log.Want(t, 0, "PostgreSQL is unavailable")
			for _, line := range strings.Split(db.Text(t, `SELECT COALESCE(string_agg(DISTINCT concat_ws(' ', name, jit, nestloop), ';'), '')
				FROM seen WHERE jit <> 'off' AND name NOT IN ('task INSERT', 'running DELETE') OR name ~ '^(relay|schedule|maintenance)' AND nestloop <> 'on'`), ";") {
				if line != "" {
					t.Errorf("the relay writes with a planner's settings that hinder it: %s", line)
				}
			}
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "postgres"))
}

// Each function of the outbox that reads a table is not compiled, whoever calls it.
func TestNoFunctionIsCompiled(t *testing.T) {
	db := relaytest.NewDatabase(t)
	without := strings.Fields(db.Text(t, `SELECT COALESCE(string_agg(proname, ' '), '') FROM pg_proc
		WHERE pronamespace = 'outbox'::regnamespace AND NOT COALESCE('jit=off' = ANY (proconfig), false)`))
	// They read no table, or are part of the statement that calls them.
	may := []string{"row_of", "with_defaults", "resolve_key", "claim_ended", "enqueue_task", "rest", "claimed", "kind_of",
		"whole", "add_events"}
	for _, name := range without {
		if !slices.Contains(may, name) {
			t.Errorf("the function %s may be compiled: SET jit = off", name)
		}
	}
}

// I13: a new version of libc or ICU may have another order. Here the database gets another locale, in
// which k10 is behind k9, while its indexes are as they are.
func TestAnotherOrderOfTheDatabasesCollationChangesNothing(t *testing.T) {
	db := relaytest.Adopt(t, pgtest.ICU(t, "en"))
	const n = 200
	var tasks []outbox.TaskSpec
	reg := handlers.New()
	for i := range n {
		taskType := fmt.Sprintf("T%d", i)
		relaytest.Tx(reg, outbox.NewTaskType[int](taskType), func(context.Context, *sql.Tx, *outbox.Task[int]) error {
			return nil
		})
		tasks = append(tasks,
			outbox.TaskSpec{Type: taskType, Payload: i},
			outbox.TaskSpec{Type: "T0", Payload: i, Options: []outbox.Option{outbox.Unique(fmt.Sprintf("k%d", i))}},
			outbox.TaskSpec{Type: "T1", Payload: i, Options: []outbox.Option{outbox.OrderedBy(fmt.Sprintf("o%d", i))}})
	}
	enqueue := func(db *relaytest.Database) (created, events int) {
		t.Helper()
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			all, err := outbox.EnqueueMany(t.Context(), tx, tasks)
			if err != nil {
				return err
			}
			for i, e := range all {
				if e.Outcome == outbox.OutcomeCreated {
					created++
				}
				first, err := inbox.Once(t.Context(), tx, "/source", fmt.Sprintf("e%d", i))
				if err != nil {
					return err
				}
				if first {
					events++
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return created, events
	}
	if created, events := enqueue(db); created != 3*n || events != 3*n {
		t.Fatalf("%d tasks were created, and %d events are new, want %d", created, events, 3*n)
	}
	locale := db.Text(t, `SELECT attname FROM pg_attribute WHERE attrelid = 'pg_database'::regclass
		AND attname IN ('daticulocale', 'datlocale')`)
	db.Do(t, `UPDATE pg_database SET `+locale+` = 'en-u-kn-true' WHERE datname = current_database()`)
	after := relaytest.Open(t, db.URL)
	if after.Text(t, `SELECT 'k10' > 'k9'`) != "true" {
		t.Fatal("the order is the same as before")
	}
	if created, events := enqueue(after); created != 2*n || events != 0 {
		t.Errorf("%d tasks were created, of which %d without a key, and %d events are new, want 0", created, 2*n, events)
	}
	relaytest.Once(t, after.DB, reg, relay.Config{})
	if left := after.Int(t, `SELECT count(*) FROM outbox.task`); left != 0 {
		t.Errorf("%d tasks never ran", left)
	}
}

func TestMain(m *testing.M) { relaytest.Main(m) }
