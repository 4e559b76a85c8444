package admin_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// What a page, a redrive and a purge read does not depend on how many dead letters there are: 100,000 here, and with
// OUTBOX_TEST_LONG=1 1,000,000.
func TestStatementsReachDeadLettersThroughTheirIndexes(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	n := 100_000
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		n = 1_000_000
	}
	db := relaytest.NewDatabase(t)
	defer db.Do(t, `DELETE FROM outbox.dead_task`)
	start := time.Now()
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
		SELECT i, now(), now(), now() - i * interval '1 second', 0, 1, 1, 'attempts', CASE WHEN i % 1000 = 0 THEN 'RARE' ELSE 'X' || i % 10 END, '{}', 'boom ' || i
		  FROM generate_series(1, $1::int) i`, n)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT 0, $1::int, t, 'ready' FROM unnest('{RARE,X0,X1,X2,X3,X4,X5,X6,X7,X8,X9}'::text[]) t`, n)
	db.Do(t, `VACUUM ANALYZE outbox.dead_task`)
	t.Logf("%d dead letters in %v", n, time.Since(start))
	c := client(t, db.DB)
	middle, err := c.Task(t.Context(), int64(n/2))
	if err != nil {
		t.Fatal(err)
	}
	page := func(f admin.Filter, after string, look int, oldest bool) admin.DeadStatements {
		t.Helper()
		s, err := c.Statements(t.Context(), f, admin.Page{After: after, Look: look, Limit: 1000}, oldest)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	short := func(f admin.Filter, after string, limit int) admin.Statement {
		t.Helper()
		s, err := c.Statements(t.Context(), f, admin.Page{After: after, Limit: limit}, false)
		if err != nil {
			t.Fatal(err)
		}
		return s.List
	}
	at := admin.PlaceOf(middle)
	old := admin.Filter{OlderThan: time.Duration(n-5000) * time.Second}
	rare, common := admin.Filter{Type: "RARE"}, admin.Filter{Type: "X1"}
	none, noneOf := admin.Filter{Error: "no such"}, admin.Filter{Error: "no such", Type: "X1"}
	noneSince := admin.Filter{Error: "no such", DiedAfter: middle.EndedAt.Add(-time.Hour)}
	searched, ofNone := page(none, at, 2000, false), page(noneOf, at, 2000, false)
	takenNone, takenOfNone, takenSince := page(none, at, 10_000, true), page(noneOf, at, 10_000, true), page(noneSince, at, 10_000, true)
	for name, c := range map[string]struct {
		statement admin.Statement
		pages     int // at most
	}{
		"list":                {short(admin.Filter{}, "", 100), 200},
		"list from a place":   {short(admin.Filter{}, at, 100), 200},
		"list a rare type":    {short(rare, at, 20), 200},
		"list a type":         {short(common, at, 100), 1000},
		"list by time":        {short(admin.Filter{DiedAfter: middle.EndedAt, DiedBefore: middle.EndedAt.Add(time.Minute)}, "", 100), 200},
		"list by age":         {short(old, "", 100), 200},
		"redrive by id":       {page(admin.Filter{IDs: []int64{1, 2, int64(n)}}, "", 0, true).Redrive, 200},
		"redrive all":         {page(admin.Filter{}, at, 0, true).Redrive, 20_000}, // 1,000 rows through eight indexes
		"redrive a type":      {page(common, at, 0, true).Redrive, 20_000},
		"redrive a rare type": {page(rare, at, 0, true).Redrive, 20_000},
		"redrive by error":    {page(admin.Filter{Error: "boom"}, at, 10_000, true).Redrive, 20_000},
		"purge all":           {page(admin.Filter{}, at, 0, true).Purge, 10_000},
		"purge a rare type":   {page(rare, at, 0, true).Purge, 10_000},
		"purge by age":        {page(old, "", 0, true).Purge, 10_000},
		"end by error":        {page(admin.Filter{Error: "boom"}, at, 10_000, true).End, 400},
		"end of a type":       {takenOfNone.End, 400},
		"end since":           {takenSince.End, 400},
		"end of a list":       {searched.End, 400},
		"end of one's list":   {ofNone.End, 400},
		"list none":           {searched.List, 400},
		"list none of one":    {ofNone.List, 2500}, // they are one in ten
		"count none":          {searched.Count, 400},
		"count all":           {page(admin.Filter{}, at, 2000, false).Count, 400},
		"count none since":    {page(noneSince, at, 2000, false).Count, 400},
		"count a type":        {page(common, at, 2000, false).Count, 400},
		"redrive none":        {takenNone.Redrive, 1000},
		"purge none":          {takenNone.Purge, 1000},
		"purge none since":    {takenSince.Purge, 1000},
		"redrive none of one": {takenOfNone.Redrive, 10_000}, // they are one in ten
		"purge none of one":   {takenOfNone.Purge, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			var text string
			start := time.Now()
			if err := tx.QueryRow("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+c.statement.Query, c.statement.Args...).Scan(&text); err != nil {
				t.Fatal(err)
			}
			var out []struct{ Plan plan }
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
			pages := out[0].Plan.Hit + out[0].Plan.Read
			if slices.Contains(out[0].Plan.reads(), "dead_task") || strings.Contains(text, `"External`) || pages > c.pages {
				t.Errorf("it reads %d pages, want %d at most and no Seq Scan:\n%s", pages, c.pages, text)
			}
			// Two ends of a page are not two filters, each of which lets half of all through: at a few million that is a plan with workers and JIT.
			if n := out[0].Plan.expects(); strings.HasPrefix(name, "count all") && n > 5*2000 {
				t.Errorf("it expects %d rows, want about 2,000:\n%s", n, text)
			}
			t.Logf("%d pages, %v", pages, time.Since(start))
		})
	}
}
