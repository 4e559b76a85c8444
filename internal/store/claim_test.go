package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// claimKinds claim tasks of the type T in a transaction, in each way that a handler's kind does.
var claimKinds = map[string]func(context.Context, *Store, *sql.Tx, plan.Start, int) (Claimed, error){
	"Tx or Batch": func(ctx context.Context, s *Store, tx *sql.Tx, from plan.Start, limit int) (Claimed, error) {
		return s.Claim(ctx, pg.Within(tx), claimTx(false), from, limit)
	},
	"group": func(ctx context.Context, s *Store, tx *sql.Tx, from plan.Start, limit int) (Claimed, error) {
		return s.Claim(ctx, pg.Within(tx), claimTx(true), from, limit)
	},
	"Leased": func(ctx context.Context, s *Store, tx *sql.Tx, from plan.Start, limit int) (Claimed, error) {
		return s.LeaseWithin(ctx, tx, LeaseTerms{TaskType: "T", Length: time.Minute, Token: aToken}, from, limit)
	},
}

const aToken = "00000000-0000-4000-8000-000000000001"

func claimTx(group bool) ClaimTx {
	return ClaimTx{TaskType: "T", Group: group, Timeout: time.Minute, Idle: time.Minute, Savepoint: "handler"}
}

// claimedIDs are the tasks that a claim takes. The claim is rolled back.
func claimedIDs(t *testing.T, db *sql.DB, before string,
	claim func(context.Context, *sql.Tx) (Claimed, error)) []int64 {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(before); err != nil {
		t.Fatalf("%s: %v", before, err)
	}
	c, err := claim(t.Context(), tx)
	if err != nil {
		t.Fatal(err)
	}
	return IDs(c.Rows)
}

func insertTasks(t *testing.T, db *sql.DB, values string) {
	t.Helper()
	if _, err := db.Exec(`INSERT INTO outbox.task (task_type, priority, attempt, run_at) VALUES ` + values); err != nil {
		t.Fatal(err)
	}
}

// lockTask locks a task until the end of the test.
func lockTask(t *testing.T, db *sql.DB, id int64) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.Exec(`SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
}

func TestAClaimTakesOnlyReadyTasksOfItsTypeThatNobodyHolds(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	insertTasks(t, db, `('T', 0, 0, now())`)
	first := &plan.Position{TaskID: 1}
	far := &plan.Position{TaskID: -1000} // the probe of a range of ids finds nothing
	starts := map[string]plan.Start{
		"the start": {}, "a watermark": {From: first}, "a far watermark": {From: far},
		"a pivot": {Pivot: first}, "a far pivot": {Pivot: far}, "due time": {Due: &plan.DueStart},
	}
	check := func(reason, change string, want []int64) {
		t.Helper()
		for kind, claim := range claimKinds {
			for start, from := range starts {
				for limit := 1; limit <= 2; limit++ {
					got := claimedIDs(t, db, change, func(ctx context.Context, tx *sql.Tx) (Claimed, error) {
						return claim(ctx, s, tx, from, limit)
					})
					if !slices.Equal(got, want) {
						t.Errorf("%s, a claim of %d, %s, from %s: took %v, want %v", reason, limit, kind, start, got, want)
					}
				}
			}
		}
		got := claimedIDs(t, db, change, func(ctx context.Context, tx *sql.Tx) (Claimed, error) {
			return s.ClaimOne(ctx, pg.Within(tx), claimTx(false), 1)
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s, a claim by id: took %v, want %v", reason, got, want)
		}
	}
	for reason, change := range map[string]string{
		"another type": `task_type = 'OTHER'`,
		"scheduled":    `state = 'scheduled'`,
		"leased":       `state = 'leased', relay_id = '` + aToken + `', lease_token = '` + aToken + `'`,
		"waiting":      `state = 'waiting', ordering_key = 'k'`,
	} {
		check(reason, `UPDATE outbox.task SET `+change, nil)
	}
	check("paused", `INSERT INTO outbox.task_type (task_type, paused) VALUES ('T', true)`, nil)
	const otherPaused = `INSERT INTO outbox.task_type (task_type, paused) VALUES ('OTHER', true), ('T', false)`
	check("another type is paused", otherPaused, []int64{1})
	lockTask(t, db, 1)
	check("locked", `SET LOCAL lock_timeout = '5s'`, nil)
}

func TestAClaimBeginsAtItsPlaceAndGoesOnInItsOrder(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	insertTasks(t, db, `('T', 1, 0, '2020-01-01'), ('T', 0, 1, '2020-01-02'), ('T', 0, 0, '2020-01-03'),
		('T', 0, 0, '2020-01-04'), ('T', 0, 0, '2020-01-03'), ('OTHER', 0, 0, '2020-01-01')`)
	lockTask(t, db, 5)
	at := func(priority, attempt int, id int64) *plan.Position {
		return &plan.Position{Priority: priority, Attempt: attempt, TaskID: id}
	}
	due := func(day int, id int64) *plan.Due {
		return &plan.Due{RunAt: time.Date(2020, 1, day, 0, 0, 0, 0, time.UTC).UnixMicro(), TaskID: id}
	}
	for _, c := range []struct {
		from plan.Start
		want []int64 // the first n are claimed; task 5 is locked
	}{
		{plan.Start{}, []int64{3, 4, 2, 1}},
		{plan.Start{From: at(0, 0, 3)}, []int64{3, 4, 2, 1}},
		{plan.Start{From: at(0, 0, 4)}, []int64{4, 2, 1}},
		{plan.Start{From: at(0, 0, 5)}, []int64{2, 1}},
		{plan.Start{From: at(0, 1, 2)}, []int64{2, 1}},
		{plan.Start{From: at(0, 1, 3)}, []int64{1}},
		{plan.Start{From: at(1, 0, 2)}, nil},
		{plan.Start{Due: due(1, 1)}, []int64{1, 2, 3, 4}},
		{plan.Start{Due: due(1, 2)}, []int64{2, 3, 4}},
		{plan.Start{Due: due(3, 0)}, []int64{3, 4}},
		{plan.Start{Pivot: at(0, 0, 3)}, []int64{3, 4, 2, 1}},
		{plan.Start{Pivot: at(0, 0, 4)}, []int64{4, 2, 3, 1}}, // up to the pivot's priority, then from the start
		{plan.Start{Pivot: at(0, 1, 2)}, []int64{2, 3, 4, 1}},
		{plan.Start{Pivot: at(0, 0, 4), From: at(0, 1, 0)}, []int64{4, 2, 1}},
		{plan.Start{Pivot: at(0, 1, 3), From: at(0, 0, 4)}, []int64{4, 2, 1}},
	} {
		for kind, claim := range claimKinds {
			for n := 1; n <= 5; n++ {
				want := slices.Clone(c.want[:min(n, len(c.want))])
				slices.Sort(want)
				got := claimedIDs(t, db, `SET LOCAL lock_timeout = '5s'`, func(ctx context.Context, tx *sql.Tx) (Claimed, error) {
					return claim(ctx, s, tx, c.from, n)
				})
				slices.Sort(got)
				if kind == "group" && c.from.Pivot != nil && n > 2 { // it may take fewer, but none twice
					got, want = slices.Compact(slices.Clone(got)), got
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, a claim of %d from pivot %+v, watermark %+v, due %+v: took %v, want %v",
						kind, n, c.from.Pivot, c.from.From, c.from.Due, got, want)
				}
			}
		}
	}
}

// I2: the sizes of the statistics and of the backlog are those of a drained, a small and a large queue.
// The settings are all combinations of those that choose between plans of a join.
func TestAClaimTakesItsLimitWithAnyStatisticsAndPlan(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	s, db := newStore(t)
	const large = 1000
	fill := func(n int) string {
		return fmt.Sprintf(`INSERT INTO outbox.task (task_type) SELECT 'T' FROM generate_series(1, %d)`, n)
	}
	for _, stats := range []int{0, 10, large} {
		for _, ready := range []int{large, 1} {
			for _, q := range []string{`ALTER TABLE outbox.task SET (autovacuum_enabled = off)`, `TRUNCATE outbox.task`, fill(stats),
				`VACUUM ANALYZE outbox.task`, `DELETE FROM outbox.task`, `ALTER SEQUENCE outbox.task_task_id_seq RESTART`, fill(ready)} {
				if _, err := db.Exec(q); err != nil {
					t.Fatalf("%s: %v", q, err)
				}
			}
			for i := range 8 {
				planner := fmt.Sprintf("SET LOCAL enable_nestloop = %t; SET LOCAL enable_hashjoin = %t; SET LOCAL enable_mergejoin = %t",
					i&1 == 0, i&2 == 0, i&4 == 0)
				for _, limit := range []int{1, 10, 100} {
					for _, from := range []plan.Start{{}, {Pivot: &plan.Position{TaskID: int64(ready/2 + 1)}}, {Due: &plan.DueStart}} {
						for kind, claim := range claimKinds {
							got := claimedIDs(t, db, planner, func(ctx context.Context, tx *sql.Tx) (Claimed, error) {
								return claim(ctx, s, tx, from, limit)
							})
							if len(got) != min(limit, ready) {
								t.Errorf("%s: limit %d, %d ready, statistics of %d, %s: took %d", kind, limit, ready, stats, planner, len(got))
							}
						}
					}
				}
			}
		}
	}
}
