package deadletter_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/needs"
)

// plan is a node of EXPLAIN's.
type plan struct {
	Node     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Hit      int    `json:"Shared Hit Blocks"`
	Read     int    `json:"Shared Read Blocks"`
	Rows     int    `json:"Plan Rows"`
	Plans    []plan
}

// expects is how many rows the planner expects of a node at most.
func (p plan) expects() int {
	most := p.Rows
	for _, below := range p.Plans {
		most = max(most, below.expects())
	}
	return most
}

func (p plan) reads(relation string) bool {
	if p.Node == "Seq Scan" && p.Relation == relation {
		return true
	}
	for _, below := range p.Plans {
		if below.reads(relation) {
			return true
		}
	}
	return false
}

// What a page, a redrive and a purge read does not depend on how many dead letters there are: 100,000 here, and with
// OUTBOX_TEST_LONG=1 1,000,000.
func TestStatementsReachDeadLettersThroughTheirIndexes(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	n := 100_000
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		n = 1_000_000
	}
	db := newDatabase(t)
	start := time.Now()
	exec(t, db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
		SELECT i, now(), now(), now() - i * interval '1 second', 0, 1, 1, 'attempts', CASE WHEN i % 1000 = 0 THEN 'RARE' ELSE 'X' || i % 10 END, '{}', 'boom ' || i
		  FROM generate_series(1, $1::int) i`, n)
	exec(t, db, `VACUUM ANALYZE outbox.dead_task`)
	t.Logf("%d dead letters in %v", n, time.Since(start))
	middle, err := deadletter.Get(t.Context(), db, int64(n/2))
	if err != nil {
		t.Fatal(err)
	}
	old := deadletter.Filter{OlderThan: time.Duration(n-5000) * time.Second}
	rare, common := deadletter.Filter{Type: "RARE"}, deadletter.Filter{Type: "X1"}
	type page struct{ end, listEnd, list, count, redrive, purge deadletter.Statement }
	pageOf := func(f deadletter.Filter, after deadletter.Cursor) (p page) {
		var err error
		if p.listEnd, p.list, p.count, err = deadletter.SearchStatements(t.Context(), db, f, after); err != nil {
			t.Fatal(err)
		}
		if p.end, p.redrive, p.purge, err = deadletter.PageStatements(t.Context(), db, f, after); err != nil {
			t.Fatal(err)
		}
		return p
	}
	none := func(f deadletter.Filter) deadletter.Filter {
		f.Error = "no such%"
		return f
	}
	all, ofRare := pageOf(deadletter.Filter{}, middle.Cursor()), pageOf(rare, middle.Cursor())
	common1, noneOf := pageOf(common, middle.Cursor()), pageOf(none(common), middle.Cursor())
	byError, byNone := pageOf(deadletter.Filter{Error: "boom%"}, middle.Cursor()), pageOf(none(deadletter.Filter{}), middle.Cursor())
	noneSince := pageOf(none(deadletter.Filter{DiedAfter: middle.DiedAt.Add(-time.Hour)}), middle.Cursor())
	byAge := pageOf(old, deadletter.Cursor{})
	for name, c := range map[string]struct {
		statement deadletter.Statement
		pages     int // at most
	}{
		"list":                {deadletter.ListStatement(deadletter.Filter{}, deadletter.Cursor{}, 100), 200},
		"list from a cursor":  {deadletter.ListStatement(deadletter.Filter{}, middle.Cursor(), 100), 200},
		"list a rare type":    {deadletter.ListStatement(rare, middle.Cursor(), 20), 200},
		"list a type":         {deadletter.ListStatement(common, middle.Cursor(), 100), 1000},
		"list by time":        {deadletter.ListStatement(deadletter.Filter{DiedAfter: middle.DiedAt, DiedBefore: middle.DiedAt.Add(time.Minute)}, deadletter.Cursor{}, 100), 200},
		"list by age":         {deadletter.ListStatement(old, deadletter.Cursor{}, 100), 200},
		"redrive by id":       {deadletter.RedriveStatement([]int64{1, 2, int64(n)}), 200},
		"redrive all":         {all.redrive, 20_000}, // 1,000 rows through eight indexes
		"redrive a type":      {common1.redrive, 20_000},
		"redrive a rare type": {ofRare.redrive, 20_000},
		"redrive by error":    {byError.redrive, 20_000},
		"purge all":           {all.purge, 10_000},
		"purge a rare type":   {ofRare.purge, 10_000},
		"purge by age":        {byAge.purge, 10_000},
		"end by error":        {byError.end, 400},
		"end of a type":       {noneOf.end, 400},
		"end since":           {noneSince.end, 400},
		"end of a list":       {byNone.listEnd, 400},
		"end of one's list":   {noneOf.listEnd, 400},
		"list none":           {byNone.list, 400},
		"list none of one":    {noneOf.list, 2500}, // they are one in ten
		"count none":          {byNone.count, 400},
		"count all":           {all.count, 400},
		"count none since":    {noneSince.count, 400},
		"count a type":        {common1.count, 400},
		"redrive none":        {byNone.redrive, 1000},
		"purge none":          {byNone.purge, 1000},
		"purge none since":    {noneSince.purge, 1000},
		"redrive none of one": {noneOf.redrive, 10_000}, // they are one in ten
		"purge none of one":   {noneOf.purge, 10_000},
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
			if out[0].Plan.reads("dead_task") || strings.Contains(text, `"External`) || pages > c.pages {
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
