package settings_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

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
	may := []string{"row_of", "with_defaults", "resolve_key", "claim_ended", "enqueue_task", "rest", "claimed", "whole", "add_events"}
	for _, name := range without {
		if !slices.Contains(may, name) {
			t.Errorf("the function %s may be compiled: SET jit = off", name)
		}
	}
}
