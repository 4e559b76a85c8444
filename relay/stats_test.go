package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/invariants"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/relay"
)

// statsOf are the counts of one type; the zero ones if there is none.
func statsOf(t testing.TB, q outbox.StatsQuerier, taskType string) outbox.TypeStats {
	t.Helper()
	all, err := outbox.Stats(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Type == taskType {
			return s
		}
	}
	return outbox.TypeStats{Type: taskType}
}

// counts are the numbers of s without its times.
func counts(s outbox.TypeStats) string {
	return fmt.Sprintf("ready %d scheduled %d leased %d dead %d finished %d failed %d", s.Ready, s.Scheduled, s.Leased, s.Dead, s.Finished, s.Failed)
}

// plans keeps the plans of the statements that it is asked.
type plans struct {
	outbox.StatsQuerier
	text string
}

func (p *plans) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.StatsQuerier.QueryContext(ctx, "EXPLAIN (ANALYZE) "+query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		p.text += line + "\n"
	}
	return p.StatsQuerier.QueryContext(ctx, query, args...)
}

func TestStatsUseNoParallelWorkers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT 0, 0, 'T', 'ready' FROM generate_series(1, 50000)`)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, setting := range []string{"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0", "max_parallel_workers_per_gather = 4"} {
		if _, err := tx.Exec("SET LOCAL " + setting); err != nil {
			t.Fatal(err)
		}
	}
	p := &plans{StatsQuerier: tx}
	if all, err := outbox.Stats(t.Context(), p); err != nil || len(all) != 1 {
		t.Fatalf("got %v, %v, want one type", all, err)
	}
	if strings.Contains(p.text, "Gather") {
		t.Errorf("the plan has workers:\n%s", p.text)
	}
	var workers string
	if err := tx.QueryRow("SHOW max_parallel_workers_per_gather").Scan(&workers); err != nil || workers != "4" {
		t.Errorf("the caller's setting is %q, %v, want it as it was", workers, err)
	}
}

func TestStatsTellFinishedFromFailedAndDead(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			// By its number a task succeeds, is discarded, fails once, dies at once or of its second attempt, snoozes once.
			var mu sync.Mutex
			calls := map[int64]int{}
			outcome := func(task *outbox.Task[payload]) error {
				mu.Lock()
				defer mu.Unlock()
				calls[task.ID]++
				switch n := task.ID % 6; {
				case n == 1:
					return handlers.Discard(errors.New("discard"))
				case n == 2 && task.Attempt == 1:
					return handlers.RetryAfter(time.Millisecond, errors.New("once"))
				case n == 3:
					return handlers.Dead(errors.New("dead"))
				case n == 4:
					return handlers.RetryAfter(time.Millisecond, errors.New("always"))
				case n == 5 && calls[task.ID] == 1:
					return handlers.Snooze(time.Millisecond)
				}
				return nil
			}
			reg := handlers.New()
			two := handlers.MaxAttempts(2)
			switch kind {
			case "TX":
				handlers.Tx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return outcome(task) }, two)
			case "BATCH":
				handlers.Batch(reg, typeBatch, 5, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error {
					errs := handlers.BatchError{}
					for _, task := range tasks {
						if err := outcome(task); err != nil {
							errs[task.ID] = err
						}
					}
					return errs
				}, two)
			case "LEASED":
				handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error { return outcome(task) }, two)
			}
			db.Enqueue(t, kind, 60)
			run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			db.Emptied(t, 30*time.Second)
			// Of ten each: 10 died at once and 10 of their second attempt; these failed twice, those once, and 10 once before success.
			if got, want := counts(statsOf(t, db, kind)), "ready 0 scheduled 0 leased 0 dead 20 finished 40 failed 40"; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

func TestStatsCountEachState(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, priority, run_at, state) VALUES
		('A', 0, now() - interval '2 hours', 'ready'), ('A', -1, now() - interval '1 hour', 'ready'), ('A', 0, now() + interval '3 hours', 'ready'),
		('A', 0, now() + interval '5 hours', 'ready'), ('B', 0, now() + interval '1 hour', 'scheduled')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, relay_id, lease_token) VALUES ('A', 'leased', $1, $1)`, someUUID)
	check := func(taskType, want string) outbox.TypeStats {
		t.Helper()
		s := statsOf(t, db, taskType)
		if got := counts(s); got != want {
			t.Errorf("%s: got %s, want %s", taskType, got, want)
		}
		return s
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if d := got - want; d < -time.Minute || d > time.Minute {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	a := check("A", "ready 2 scheduled 2 leased 1 dead 0 finished 0 failed 0")
	near("the age of the lane's head, which is the urgent task", a.OldestReady, time.Hour)
	near("the next run_at", time.Until(a.NextRunAt), 3*time.Hour)
	if b := check("B", "ready 0 scheduled 1 leased 0 dead 0 finished 0 failed 0"); b.OldestReady != 0 {
		t.Errorf("B has no ready task and is %v old", b.OldestReady)
	}

	for _, step := range []struct{ name, statement, want string }{
		{"an update of what is not counted", `UPDATE outbox.task SET priority = 3`, "ready 2 scheduled 2 leased 1 dead 0 finished 0 failed 0"},
		{"promote", `UPDATE outbox.task SET state = 'ready' WHERE state = 'scheduled' AND task_type = 'A'`, "ready 4 scheduled 0 leased 1 dead 0 finished 0 failed 0"},
		{"another type", `UPDATE outbox.task SET task_type = 'B' WHERE task_id = 1`, "ready 3 scheduled 0 leased 1 dead 0 finished 0 failed 0"},
		{"and back", `UPDATE outbox.task SET task_type = 'A' WHERE task_id = 1`, "ready 4 scheduled 0 leased 1 dead 0 finished 0 failed 0"},
		{"dead letter", `WITH d AS (DELETE FROM outbox.task WHERE task_id = 2 RETURNING *)
			INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload)
			SELECT task_id, run_at, created_at, priority, 1, 1, 'handler', task_type, payload FROM d`, "ready 3 scheduled 0 leased 1 dead 1 finished 0 failed 0"},
		{"redrive", `WITH d AS (DELETE FROM outbox.dead_task RETURNING *)
			INSERT INTO outbox.task (task_id, task_type, payload) OVERRIDING SYSTEM VALUE SELECT task_id, task_type, payload FROM d`, "ready 4 scheduled 0 leased 1 dead 0 finished 0 failed 0"},
		{"done", `DELETE FROM outbox.task WHERE task_id = 2`, "ready 3 scheduled 0 leased 1 dead 0 finished 1 failed 0"},
		{"truncate", `TRUNCATE outbox.task, outbox.dead_task`, "ready 0 scheduled 0 leased 0 dead 0 finished 1 failed 0"},
	} {
		t.Run(step.name, func(t *testing.T) {
			db.Do(t, step.statement)
			check("A", step.want)
			db.invariantsOfCounts(t)
		})
	}
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (7, 'A', 'waiting')`)
	if a := statsOf(t, db, "A"); a.Waiting != 7 {
		t.Errorf("waiting: got %d, want 7", a.Waiting)
	}
	db.Do(t, `DELETE FROM outbox.counter_log WHERE kind = 'waiting'`)
}

// I9, while tasks come and go and several relays fold at once: at every moment one snapshot of the counts and one
// of the rows say the same.
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
	exec := func(query string) func() error {
		return func() error {
			_, err := db.ExecContext(context.WithoutCancel(ctx), query)
			return err
		}
	}
	loop(exec(`INSERT INTO outbox.task (task_type, run_at) SELECT (ARRAY['A', 'B', 'C'])[1 + n % 3], now() + (n % 2) * interval '1 hour' FROM generate_series(1, 10) n`))
	loop(exec(`DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task WHERE task_type = 'A' LIMIT 5)`))
	loop(exec(`UPDATE outbox.task SET state = CASE state WHEN 'ready' THEN 'scheduled' ELSE 'ready' END WHERE task_id IN (SELECT task_id FROM outbox.task WHERE task_type = 'B' ORDER BY task_id LIMIT 20)`))
	loop(func() error { // an app that changes its mind
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.Exec(`INSERT INTO outbox.task (task_type) SELECT 'C' FROM generate_series(1, 3)`)
		return errors.Join(err, tx.Rollback())
	})
	for range 2 {
		loop(func() error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			var n int
			if err := tx.QueryRow(upkeep.FoldSQL, 50).Scan(&n); err != nil {
				return err
			}
			return tx.Commit()
		})
	}
	folded := func() bool { return db.Int(t, `SELECT count(*) FROM outbox.counter`) > 0 }
	for round := 0; round < 30 || round < 10_000 && !folded(); round++ {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		stats, err := outbox.Stats(t.Context(), tx)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, s := range stats {
			got = append(got, fmt.Sprintf("%s %d %d", s.Type, s.Ready, s.Scheduled))
		}
		var want string
		if err := tx.QueryRow(`SELECT COALESCE(string_agg(format('%s %s %s', task_type, r, s), ', ' ORDER BY task_type), '') FROM (
			SELECT task_type, count(*) FILTER (WHERE state = 'ready') r, count(*) FILTER (WHERE state = 'scheduled') s FROM outbox.task GROUP BY 1) t`).Scan(&want); err != nil {
			t.Fatal(err)
		}
		tx.Rollback()
		got = slices.DeleteFunc(got, func(s string) bool { return strings.HasSuffix(s, " 0 0") })
		if strings.Join(got, ", ") != want {
			t.Fatalf("round %d: got %s, want %s", round, strings.Join(got, ", "), want)
		}
	}
	cancel()
	all.Wait()
	if !folded() {
		t.Error("nothing was folded")
	}
}

func TestARelayFoldsTheLogByItself(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Tx(reg, typeTx, txEffect)
	for range 2 {
		run(t, db, reg, relay.Config{})
	}
	for i := range 12 { // more than one statement of the fold takes
		db.Do(t, `INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT -1 + 2 * (n % 2), 'OTHER', $1 FROM generate_series(1, 1000) n`, fmt.Sprint("kind", i))
	}
	eventually(t, 30*time.Second, "the log is empty", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.counter_log`) == 0 })
	if n := db.Int(t, `SELECT count(*) FROM outbox.counter WHERE task_type = 'OTHER' AND tasks = 0`); n != 12 {
		t.Errorf("%d counters of 12 were written", n)
	}
	db.Do(t, `DELETE FROM outbox.counter WHERE task_type = 'OTHER'`)
}

// Stats reads the same pages whatever the number of tasks. 10,000,000 of them with OUTBOX_TEST_LONG=1.
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
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, run_at) SELECT 'TYPE' || n % 10, '{"user_id": 12345}', now() + (n / 10 % 2) * interval '1 hour' FROM generate_series(1, $1::int) n`, size)
		db.fold(t)
		db.Do(t, `VACUUM ANALYZE outbox.task`)
		db.Do(t, `VACUUM outbox.counter_log`)
		db.Do(t, `VACUUM outbox.counter`)
		p := explain(t, db, true, statsSQL(t))
		pages := p.Hit + p.Read
		fastest := time.Hour
		for range 20 {
			began := time.Now()
			if _, err := outbox.Stats(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			fastest = min(fastest, time.Since(began))
		}
		t.Logf("Stats with 10 types and %d tasks: %v, %d pages", size, fastest, pages)
		if pages > 120 { // two probes a type, of an index that is at most four pages deep
			t.Errorf("it reads %d pages with %d tasks", pages, size)
		}
		if relaytest.Timing && fastest > 5*time.Millisecond {
			t.Errorf("with %d tasks it takes %v, want less than 5ms", size, fastest)
		}
		if s := statsOf(t, db, "TYPE3"); s.Ready+s.Scheduled != int64(size/10) || size > 10 && (s.OldestReady <= 0 || s.NextRunAt.IsZero()) {
			t.Errorf("with %d tasks: got %+v", size, s)
		}
	}
	db.Do(t, `TRUNCATE outbox.task`)
}

// I10 of Stats: it finds heads through the lanes' index, whatever the table was like when its statistics were taken.
func TestStatsReachTasksThroughTheirIndexWithAnyStatistics(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	for _, rows := range relaytest.Part([]int{0, 1, 20_000, 10}, 2) {
		stale(t, db, rows, 1, "both")
		db.Do(t, `INSERT INTO outbox.task (task_type, state, run_at) SELECT 'TX', CASE n % 2 WHEN 0 THEN 'ready' ELSE 'scheduled' END, now()
			FROM generate_series(1, 20000) n`)
		var indexes []string
		explain(t, db, false, statsSQL(t)).each(func(p plan) {
			indexes = append(indexes, p.Index)
			if p.Node == "Seq Scan" && p.Relation == "task" {
				t.Errorf("statistics of %d rows: it reads the whole table", rows)
			}
		})
		if !slices.Contains(indexes, "task_lane") || !slices.Contains(indexes, "task_scheduled") {
			t.Errorf("statistics of %d rows: plan uses %q", rows, indexes)
		}
	}
}

// statsSQL is the statement of outbox.Stats.
func statsSQL(t testing.TB) string {
	var c captured
	if _, err := outbox.Stats(t.Context(), &c); !errors.Is(err, errCaptured) {
		t.Fatal(err)
	}
	return c.query
}

type captured struct{ query string }

var errCaptured = errors.New("captured")

func (c *captured) QueryContext(_ context.Context, query string, _ ...any) (*sql.Rows, error) {
	c.query = query
	return nil, errCaptured
}

// fold moves all of the log.
func (db *database) fold(t testing.TB) {
	t.Helper()
	db.Int(t, upkeep.FoldSQL, 1_000_000)
}

func (db *database) invariantsOfCounts(t testing.TB) {
	t.Helper()
	if n := db.Int(t, invariants.Miscounted); n != 0 {
		t.Errorf("I9: %d counts are not those of the rows", n)
	}
}
