package relaytest

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestMain(m *testing.M) { Main(m) }

// The next test has the database and the session, and finds nothing of the one before.
func TestADatabaseIsLeftAsItWasMade(t *testing.T) {
	needs.CI(t)
	if os.Getenv("OUTBOX_TEST_POOLER") != "" {
		t.Skip("behind a pooler no database is reused")
	}
	var url string
	var pid int
	const pidSQL = `SELECT pg_backend_pid()`
	t.Run("one test", func(t *testing.T) {
		db := NewDatabase(t)
		db.SetMaxOpenConns(1)
		url, pid = db.URL, db.Int(t, pidSQL)
		db.Enqueue(t, "A", 3)
		db.Do(t, `SET search_path = pg_catalog; SET statement_timeout = 1234; LISTEN mine;
			SELECT pg_advisory_lock(1); CREATE TEMPORARY TABLE temporary (n int); CREATE TABLE public.mine (n int);
			CREATE FUNCTION public.mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
			CREATE TRIGGER mine AFTER INSERT ON outbox.task EXECUTE FUNCTION public.mine()`)
	})
	t.Run("the next", func(t *testing.T) {
		db := NewDatabase(t)
		if db.URL != url || db.Int(t, pidSQL) != pid {
			t.Error("it has another database or another session")
		}
		if idle := db.Stats().Idle; idle > keptSessions {
			t.Errorf("%d sessions are idle", idle)
		}
		if max := db.Stats().MaxOpenConnections; max != 0 {
			t.Errorf("its pool is limited to %d connections", max)
		}
		const leftovers = `SELECT concat_ws(', ',
			(SELECT string_agg(relname, ' ') FROM pg_class WHERE relname IN ('temporary', 'mine')),
			(SELECT count(*) FROM outbox.task),
			(SELECT count(*) FROM outbox.counter_log), (SELECT count(*) FROM pg_listening_channels()),
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
			current_setting('search_path'), current_setting('statement_timeout'))`
		if got, want := db.Text(t, leftovers), `0, 0, 0, 0, "$user", public, 0`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		db.Enqueue(t, "A", 1)
		if id := db.Int(t, `SELECT task_id FROM outbox.task`); id != 1 {
			t.Errorf("the first task has the id %d", id)
		}
	})
	for change, statement := range map[string]string{
		"a column": `ALTER TABLE outbox.task ADD COLUMN mine int`,
		"a trigger": `CREATE TRIGGER mine BEFORE UPDATE ON outbox.task FOR EACH ROW
			EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
		"a table":             `CREATE TABLE outbox.mine (n int)`,
		"a new function":      `CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
		"a function":          `ALTER FUNCTION outbox.enqueue_task COST 1`,
		"a row of the schema": `DELETE FROM outbox.promote_lock`,
		"statistics":          `INSERT INTO effect VALUES (1); ANALYZE effect`,
		"its size": `INSERT INTO outbox.task (task_type, payload) SELECT 'A', '{}' FROM generate_series(1, 9000);
			DELETE FROM outbox.task`,
		"a setting": `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET work_mem = ''1MB''', current_database()); END $$`,
		"a prepared statement": `PREPARE mine AS SELECT 1`,
	} {
		t.Run("after a change of "+change, func(t *testing.T) {
			var changed string
			t.Run("it", func(t *testing.T) {
				db := NewDatabase(t)
				changed = db.URL
				db.Do(t, statement)
			})
			if db := NewDatabase(t); db.URL == changed {
				t.Error("the next test has that database")
			}
		})
	}
}

// waits is where the goroutines of these tests are.
func waits(release chan struct{}) { <-release }

// I11 is checked for one relay beside others: what is started under it, however deep, is its own,
// and counts until it has ended, unless the test says that it leaves it.
func TestGoroutinesOfOneRelayAreToldFromOthers(t *testing.T) {
	var mine, other, idle goroutines
	releaseMine, releaseOther := make(chan struct{}), make(chan struct{})
	defer close(releaseOther)
	mine.in(t.Context(), func(context.Context) {
		go func() { go waits(releaseMine) }()
	})
	other.in(t.Context(), func(context.Context) { go waits(releaseOther) })
	idle.in(t.Context(), func(context.Context) {})
	// Each has one goroutine, once the one between has ended and both have got to where they wait.
	waiting := func(g *goroutines) bool {
		stacks := g.stacks(t)
		return len(stacks) == 1 && strings.Contains(stacks[0], "relaytest.waits")
	}
	Eventually(t, endWithin, "both wait", func() bool { return waiting(&mine) && waiting(&other) })
	idle.ended(t)
	other.left = []string{"relaytest.waits"}
	other.ended(t)
	close(releaseMine)
	mine.ended(t)
}
