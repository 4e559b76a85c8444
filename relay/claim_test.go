package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestEachTaskOfEachKindRunsOnce(t *testing.T) {
	t.Parallel()
	for _, order := range []relay.Order{relay.OrderEnqueued, relay.OrderRandom} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			db := newDatabase(t)
			db.enqueueEach(t, 100)
			once(t, db, all(), relay.Config{Order: order})
			db.wantRows(t, 0, `outbox.task`)
			db.wantRows(t, 300, `effect WHERE attempt = 1`)
			db.OnceEach(t, 300)
		})
	}
}

const someUUID = "00000000-0000-4000-8000-000000000001"

// stale leaves the table of tasks with n tasks in the given state (half of them in each, if it is
// "both"), and statistics from a time when it had stats of them.
func stale(t testing.TB, db *database, stats, n int, state string) {
	t.Helper()
	fill := func(n int) {
		db.Do(t, `INSERT INTO outbox.task (task_type, state, run_at)
			SELECT 'TX', CASE WHEN $2 <> 'both' THEN $2 WHEN n % 2 = 0 THEN 'ready' ELSE 'scheduled' END, now() - interval '1 s'
			  FROM generate_series(1, $1::int) n`, n, state)
	}
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off)`)
	db.Do(t, `TRUNCATE outbox.task`)
	fill(stats)
	db.Do(t, `VACUUM ANALYZE outbox.task`)
	db.Do(t, `DELETE FROM outbox.task`)
	fill(n)
}

// planners are all combinations of the settings that choose between plans of a join.
func planners() []string {
	var out []string
	for i := range 8 {
		var set strings.Builder
		for bit, name := range []string{"enable_nestloop", "enable_hashjoin", "enable_mergejoin"} {
			fmt.Fprintf(&set, "SET LOCAL %s = %t; ", name, i&(1<<bit) == 0)
		}
		out = append(out, set.String())
	}
	return out
}

func TestPromoteTakesExactlyItsLimitWithAnyStatisticsAndPlan(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, stats := range relaytest.Part([]int{0, 1, 10, 2000}, 2) {
		for _, due := range relaytest.Part([]int{2000, 50, 1}, 2) {
			stale(t, db, stats, due, "scheduled")
			for _, planner := range planners() {
				if got, want := changed(t, db, planner, statements["promote scheduled"], "TX", 1000), min(due, 1000); got != want {
					t.Errorf("%d due, statistics of %d, %spromoted %d, want %d", due, stats, planner, got, want)
				}
			}
		}
	}
}

// changed is how many rows a statement changes; it is rolled back.
func changed(t testing.TB, db *database, settings, query string, args ...any) int {
	t.Helper()
	tx := db.begin(t)
	defer tx.Rollback()
	if _, err := tx.Exec(settings); err != nil {
		t.Fatal(err)
	}
	result, err := tx.Exec(query, args...)
	if err != nil {
		t.Fatalf("%s%s: %v", settings, query, err)
	}
	n, err := result.RowsAffected()
	noErr(t, err)
	return int(n)
}

// I2: should a claim ever take more than it asked for, nothing of it happens.
func TestAClaimThatTookTooMuchIsRolledBackAndReported(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `DO $$ BEGIN
		EXECUTE replace(pg_get_functiondef('outbox.claim_tasks'::regproc), 'LIMIT up_to', 'LIMIT up_to + 1');
	END $$`)
	db.Enqueue(t, "BATCH", 5)
	reg, called := handlers.New(), false
	handlers.Batch(reg, outbox.NewTaskType[payload]("BATCH"), 2,
		func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
			called = true
			return nil
		})
	r := unstarted(t, db, reg, relay.Config{Workers: 1})
	if err := r.RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "a claim of at most 2 tasks took 3") {
		t.Errorf("got error %v, want one that says that 3 tasks were taken", err)
	}
	if called {
		t.Error("a handler was called")
	}
	db.wantRows(t, 5, `outbox.task WHERE state = 'ready' AND attempt = 0`)
}

// I1, I2: a task that is updated between the snapshot of a claim and its lock is claimed as it is then.
func TestATaskThatChangesWhileAClaimReachesItIsClaimedAsItIsThen(t *testing.T) {
	t.Parallel()
	for _, changed := range []int64{1, 2} {
		db := newDatabase(t)
		db.Enqueue(t, "BATCH", 3)
		db.Do(t, `CREATE FUNCTION reached(id bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
			IF id = `+strconv.FormatInt(changed, 10)+` THEN
				PERFORM pg_advisory_xact_lock(1);
			END IF;
			RETURN true;
		END $$`)
		db.Do(t, `DO $$ BEGIN
			EXECUTE replace(pg_get_functiondef('outbox.claim_tasks'::regproc), 't.task_type = of_type', 't.task_type = of_type AND public.reached(t.task_id)');
		END $$`)
		gate, err := direct(t, db.URL).Conn(t.Context())
		noErr(t, err)
		defer gate.Close()
		if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
			t.Fatal(err)
		}
		var got []string
		reg := handlers.New()
		handlers.Batch(reg, outbox.NewTaskType[json.RawMessage]("BATCH"), 10,
			func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[json.RawMessage]) error {
				for _, task := range tasks {
					got = append(got, fmt.Sprint(task.ID, strings.Contains(string(task.Payload), "changed")))
				}
				return nil
			})
		r := unstarted(t, db, reg, relay.Config{Workers: 1})
		claimed := make(chan error, 1)
		go func() { claimed <- r.RunOnce(t.Context()) }()
		db.becomes(t, 10*time.Second, 1, "the claim is at the task", `SELECT count(*) FROM pg_locks
				WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND locktype = 'advisory'
				AND NOT granted`)
		db.Do(t, `UPDATE outbox.task SET payload = '{"changed": 1}' WHERE task_id = $1`, changed)
		if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
			t.Fatal(err)
		}
		if err := <-claimed; err != nil {
			t.Fatalf("task %d changed: %v", changed, err)
		}
		want := []string{fmt.Sprint(1, changed == 1), fmt.Sprint(2, changed == 2), fmt.Sprint(3, false)}
		if !slices.Equal(got, want) || db.Int(t, `SELECT count(*) FROM outbox.task`) != 0 {
			t.Errorf("task %d changed: the handler had %v, want %v", changed, got, want)
		}
	}
}

// A type of a higher priority holds the others back while it has work.
func TestBoundsByPriorityDecideWhatIsClaimed(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	strict := func(_ context.Context, l relay.Load) map[string]int {
		most := map[string]int{}
		for _, t := range l.Types {
			for _, other := range l.Types {
				if other.Waiting && other.Priority < t.Priority {
					most[t.Type] = 0
				}
			}
		}
		return most
	}
	// A claim that takes longer than 50 ms is not waited for, so on a machine that is busy with
	// something else there is a second try and a third.
	for try, urgent := 0, 0; urgent < 105; try++ { // of the first 120 tasks; by turns it would be 80
		if try == 3 {
			t.Fatalf("%d of the first 120 tasks are of the urgent type, want nearly all", urgent)
		}
		db.Enqueue(t, "A", 120)
		db.Enqueue(t, "B", 40)
		var ran, others atomic.Int64
		reg := handlers.New()
		for i, name := range []string{"A", "B"} {
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(context.Context, *outbox.Task[payload]) error {
				if n := ran.Add(1); name == "B" && n <= 120 {
					others.Add(1)
				}
				<-time.After(3 * time.Millisecond)
				return nil
			}, handlers.Priority(i))
		}
		once(t, db, reg, relay.Config{Workers: 4, WorkersByType: strict})
		db.wantRows(t, 0, `outbox.task`)
		urgent = 120 - int(others.Load())
	}
}

// A relay goes on by itself when what held a type back has passed.
func TestATypeThatWasHeldBackStartsByItself(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 10)
	var most, asked atomic.Int64
	r := run(t, db, all(), relay.Config{PollInterval: time.Minute, WorkersByType: func(context.Context, relay.Load) map[string]int {
		asked.Add(1)
		return map[string]int{"TX": int(most.Load())}
	}})
	eventually(t, 20*time.Second, "it is asked again", func() bool { return asked.Load() > 20 })
	db.wantRows(t, 10, `outbox.task`)
	most.Store(1)
	db.Emptied(t, 20*time.Second)
	r.Stop()
	db.OnceEach(t, 10)
}
