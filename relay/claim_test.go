package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

const someUUID = "00000000-0000-4000-8000-000000000001"

// stale leaves the table of tasks with n tasks in the given state (half of them in each, if it is "both"), and
// statistics from a time when it had stats of them.
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

// F1, I2: the sizes of the statistics and of the backlog are those of a drained, a small and a large queue.
func TestAClaimTakesExactlyItsLimitWithAnyStatisticsAndPlan(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const large = 1000
	for _, stats := range []int{0, 1, 10, large} {
		for _, ready := range []int{1, 50, large} {
			stale(t, db, stats, ready, "ready")
			first := db.Int(t, `SELECT min(task_id) FROM outbox.task`)
			for _, planner := range planners() {
				for _, limit := range []int{1, 10, 100} {
					pivot := first + ready/2
					for _, c := range []struct {
						name string
						want int
						args []any
					}{
						{"claim", min(limit, ready), []any{"TX", limit}},
						{"claim from", min(limit, ready-ready/2), []any{"TX", limit, 0, 0, pivot, 0}},
						{"claim one", 1, []any{"TX", pivot}},
						{"lease", min(limit, ready), []any{"TX", limit, someUUID, someUUID, 1000, 1000, 0, 0, 0, 0}},
						{"lease from", min(limit, ready-ready/2), []any{"TX", limit, someUUID, someUUID, 1000, 1000, 0, 0, 0, pq.Array([]int{pivot}), limit}},
						{"lease from", min(limit, ready, 6), []any{"TX", limit, someUUID, someUUID, 1000, 1000, 0, 0, 0, pq.Array([]int{pivot, first, pivot}), 3}},
					} {
						if got := changed(t, db, planner, relay.Statements[c.name], c.args...); got != c.want {
							t.Errorf("%s: limit %d, %d ready, statistics of %d, %stook %d, want %d", c.name, limit, ready, stats, planner, got, c.want)
						}
					}
				}
			}
		}
	}
}

func TestPromoteTakesExactlyItsLimitWithAnyStatisticsAndPlan(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, stats := range []int{0, 1, 10, 2000} {
		for _, due := range []int{1, 50, 2000} {
			stale(t, db, stats, due, "scheduled")
			for _, planner := range planners() {
				if got, want := changed(t, db, planner, relay.Statements["promote"], "TX", 1000), min(due, 1000); got != want {
					t.Errorf("%d due, statistics of %d, %spromoted %d, want %d", due, stats, planner, got, want)
				}
			}
		}
	}
}

// changed is how many rows a statement changes; it is rolled back.
func changed(t testing.TB, db *database, settings, query string, args ...any) int {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(settings); err != nil {
		t.Fatal(err)
	}
	result, err := tx.Exec(query, args...)
	if err != nil {
		t.Fatalf("%s%s: %v", settings, query, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// I2: should a claim ever take more than it asked for, nothing of it happens.
func TestAClaimThatTookTooMuchIsRolledBackAndReported(t *testing.T) {
	db := newDatabase(t)
	db.Enqueue(t, "TX", 5)
	reg, called := handlers.New(), false
	handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		called = true
		return nil
	})
	r, err := relay.New(db.DB, reg, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	unbounded := strings.Replace(relay.Statements["claim"], "LIMIT $2", "LIMIT $2 + 1", 1)
	if err := r.WithClaim("TX", unbounded); err == nil || !strings.Contains(err.Error(), "a claim of at most 1 tasks took 2") {
		t.Errorf("got error %v, want one that says that 2 tasks were taken", err)
	}
	if called {
		t.Error("a handler was called")
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0`); n != 5 {
		t.Errorf("%d tasks are as they were, want 5", n)
	}
}
