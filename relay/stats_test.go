package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// statsOf are the counts of one type; the zero ones if there is none.
func statsOf(t testing.TB, q outbox.Querier, taskType string) outbox.TypeStats {
	t.Helper()
	all, err := outbox.Stats(t.Context(), q)
	noErr(t, err)
	for _, s := range all {
		if s.Type == taskType {
			return s
		}
	}
	return outbox.TypeStats{Type: taskType}
}

// counts are the numbers of s without its times.
func counts(s outbox.TypeStats) string {
	return fmt.Sprintf("ready %d scheduled %d retrying %d leased %d dead %d finished %d failed %d",
		s.Ready, s.Scheduled, s.Retrying,
		s.Leased, s.Dead, s.Finished, s.Failed)
}

func TestStatsUseNoParallelWorkers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT 0, 0, 'T', 'ready'
		FROM generate_series(1, 50000)`)
	eager := direct(t, with(t,
		db.URL, "options", "-c parallel_setup_cost=0 -c parallel_tuple_cost=0 -c min_parallel_table_scan_size=0"))
	explain(t, eager, false, statsSQL(t)).each(func(p plan) {
		if strings.Contains(p.Node, "Gather") {
			t.Error("the plan has workers")
		}
	})
}

func TestStatsCountEachState(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, priority, run_at, state) VALUES
		('A', 0, now() - interval '2 hours', 'ready'), ('A', -1, now() - interval '1 hour', 'ready'), ('A', 0,
		now() + interval '3 hours', 'ready'),
		('A', 0, now() + interval '5 hours', 'ready'), ('B', 0, now() + interval '1 hour', 'scheduled')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, relay_id, lease_token) VALUES ('A', 'leased', $1, $1)`, someUUID)
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if d := got - want; d < -30*time.Minute || d > 30*time.Minute {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	a, b := statsOf(t, db, "A"), statsOf(t, db, "B")
	near("the age of the oldest, which is not the lane's head", a.OldestReady, 2*time.Hour)
	near("the next run_at", time.Until(a.NextRunAt), 3*time.Hour)
	near("without a ready task", b.OldestReady, 0)
	if got, want := counts(b), "ready 0 scheduled 1 retrying 0 leased 0 dead 0 finished 0 failed 0"; got != want {
		t.Errorf("B: got %s, want %s", got, want)
	}
	for _, step := range []struct{ name, statement, want string }{
		{"an update of what is not counted", `UPDATE outbox.task SET priority = 3`,
			"ready 2 scheduled 2 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"promote", `UPDATE outbox.task SET state = 'ready' WHERE state = 'scheduled' AND task_type = 'A'`,
			"ready 4 scheduled 0 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"a retry", `UPDATE outbox.task SET state = 'scheduled', attempt = 1 WHERE task_id = 1`,
			"ready 3 scheduled 0 retrying 1 leased 1 dead 0 finished 0 failed 0"},
		{"begun anew", `UPDATE outbox.task SET attempt = 0 WHERE task_id = 1`,
			"ready 3 scheduled 1 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"written back", `WITH t AS (DELETE FROM outbox.task WHERE task_id <= 2 RETURNING *)
			INSERT INTO outbox.task (task_id, task_type, state, attempt, attempted_at) OVERRIDING SYSTEM VALUE
			SELECT task_id, task_type, 'scheduled', 2, now() FROM t`,
			"ready 2 scheduled 0 retrying 2 leased 1 dead 0 finished 0 failed 0"},
		{"due", `UPDATE outbox.task SET state = 'ready' WHERE task_id <= 2`,
			"ready 4 scheduled 0 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"another type", `UPDATE outbox.task SET task_type = 'B' WHERE task_id = 1`,
			"ready 3 scheduled 0 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"and back", `UPDATE outbox.task SET task_type = 'A' WHERE task_id = 1`,
			"ready 4 scheduled 0 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"dead letter", `WITH d AS (DELETE FROM outbox.task WHERE task_id = 2 RETURNING *)
			INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type,
			payload)
			SELECT task_id, run_at, created_at, priority, 1, 1, 'handler', task_type, payload
			FROM d`, "ready 3 scheduled 0 retrying 0 leased 1 dead 1 finished 0 failed 0"},
		{"redrive", `WITH d AS (DELETE FROM outbox.dead_task RETURNING *)
			INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE SELECT task_id, task_type, payload
			FROM d`, "ready 4 scheduled 0 retrying 0 leased 1 dead 0 finished 0 failed 0"},
		{"done", `DELETE FROM outbox.task WHERE task_id = 2`,
			"ready 3 scheduled 0 retrying 0 leased 1 dead 0 finished 1 failed 0"},
		{"truncate", `TRUNCATE outbox.task, outbox.dead_task`,
			"ready 0 scheduled 0 retrying 0 leased 0 dead 0 finished 1 failed 0"},
	} {
		db.Do(t, step.statement)
		if got := counts(statsOf(t, db, "A")); got != step.want {
			t.Errorf("%s: got %s, want %s", step.name, got, step.want)
		}
		db.invariantsOfCounts(t)
	}
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (7, 'A', 'waiting')`)
	if a := statsOf(t, db, "A"); a.Waiting != 7 {
		t.Errorf("waiting: got %d, want 7", a.Waiting)
	}
	db.Do(t, `DELETE FROM outbox.counter_log WHERE kind = 'waiting'`)
}

// I9, while tasks come and go and several relays fold at once: at every moment one snapshot of the
// counts and one of the rows say the same.
func TestCountsAreExactBesideWritersAndFolds(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	defer cancel()
	loop := func(f func() error) {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := f(); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	exec := func(query string, args ...any) func() error {
		return func() error {
			_, err := db.ExecContext(context.WithoutCancel(ctx), query, args...)
			return err
		}
	}
	loop(exec(`INSERT INTO outbox.task (task_type, run_at) SELECT (ARRAY['A', 'B', 'C'])[1 + n % 3],
		now() + (n % 2) * interval '1 hour' FROM generate_series(1, 10) n`))
	loop(exec(`DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task WHERE task_type = 'A' LIMIT 5)`))
	loop(exec(`UPDATE outbox.task SET state = CASE state WHEN 'ready' THEN 'scheduled' ELSE 'ready' END
		WHERE task_id IN (SELECT task_id FROM outbox.task WHERE task_type = 'B' ORDER BY task_id LIMIT 20)`))
	loop(func() error { // an app that changes its mind
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.Exec(`INSERT INTO outbox.task (task_type) SELECT 'C' FROM generate_series(1, 3)`)
		return errors.Join(err, tx.Rollback())
	})
	for range 2 {
		loop(exec(sent["fold the log of counts"], 50))
	}
	folded := func() bool { return db.Int(t, `SELECT count(*) FROM outbox.counter`) > 0 }
	for round := 0; round < 30 || round < 10_000 && !folded(); round++ {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		noErr(t, err)
		stats, err := outbox.Stats(t.Context(), tx)
		noErr(t, err)
		got := map[string]string{}
		for _, s := range stats {
			if s.Ready+s.Scheduled > 0 {
				got[s.Type] = fmt.Sprint(s.Ready, s.Scheduled)
			}
		}
		want := map[string]string{}
		for _, of := range []string{"A", "B", "C"} {
			var n, ready int
			noErr(t, tx.QueryRow(`SELECT count(*), count(*) FILTER (WHERE state = 'ready') FROM outbox.task
				WHERE task_type = $1`, of).Scan(&n, &ready))
			if n > 0 {
				want[of] = fmt.Sprint(ready, n-ready)
			}
		}
		tx.Rollback()
		if !maps.Equal(got, want) {
			t.Fatalf("round %d: Stats say ready and scheduled %v, want %v", round, got, want)
		}
	}
	cancel()
	all.Wait()
	if !folded() {
		t.Error("nothing was folded")
	}
}

// Stats reads the same pages whatever the number of tasks. 10,000,000 of them with
// OUTBOX_TEST_LONG=1.
func TestStatsCostTheSameAtAnyNumberOfTasks(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	sizes := []int{10, 50_000}
	if relaytest.Long {
		sizes = append(sizes, 10_000_000)
	}
	for _, size := range sizes {
		db.Do(t, `TRUNCATE outbox.task`)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, run_at) SELECT 'TYPE' || n % 10, '{"user_id": 12345}',
			now() + (n / 10 % 2) * interval '1 hour' FROM generate_series(1, $1::int) n`, size)
		db.Int(t, sent["fold the log of counts"], 1_000_000)
		for _, table := range []string{"task", "counter_log", "counter"} {
			db.Do(t, `VACUUM ANALYZE outbox.`+table)
		}
		p := explain(t, db, true, statsSQL(t))
		fastest := time.Hour
		for range 20 {
			began := time.Now()
			statsOf(t, db, "TYPE3")
			fastest = min(fastest, time.Since(began))
		}
		t.Logf("Stats with 10 types and %d tasks: %v, %d pages", size, fastest, p.Hit+p.Read)
		if p.Hit+p.Read > 120 { // two probes a type, of an index that is at most four pages deep
			t.Errorf("it reads %d pages with %d tasks", p.Hit+p.Read, size)
		}
		if relaytest.Timing && fastest > 5*time.Millisecond {
			t.Errorf("with %d tasks it takes %v, want less than 5ms", size, fastest)
		}
		if s := statsOf(t, db, "TYPE3"); s.Ready+s.Scheduled != int64(size/10) {
			t.Errorf("with %d tasks: got %+v", size, s)
		}
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// statsSQL is the statement of outbox.Stats.
func statsSQL(t testing.TB) string {
	var c captured
	if _, err := outbox.Stats(t.Context(), &c); !errors.Is(err, errCaptured) {
		t.Fatal(err)
	}
	return c.query
}

type captured struct {
	outbox.Querier
	query string
}

var errCaptured = errors.New("captured")

func (c *captured) QueryContext(_ context.Context, query string, _ ...any) (*sql.Rows, error) {
	c.query = query
	return nil, errCaptured
}

func (db *database) invariantsOfCounts(t testing.TB) {
	t.Helper()
	db.want(t, 0, "I9: counts that are not those of the rows", invariants.Miscounted)
}
