package admin_test

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/counts"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
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

// reads are the tables that the plan reads as a whole.
func (p plan) reads() (tables []string) {
	if p.Node == "Seq Scan" {
		tables = append(tables, p.Relation)
	}
	for _, below := range p.Plans {
		tables = append(tables, below.reads()...)
	}
	return tables
}

// huge makes a table of n tasks of the type A in each state that many tasks may be in, with a few of the type RARE behind, and of as many dead and finished
// ones. Triggers do not fire: counts are written for the types.
func huge(t *testing.T, db *database, n int) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, statement := range []string{
		`SET LOCAL session_replication_role = replica`,
		`TRUNCATE outbox.task, outbox.dead_task, outbox.done_task, outbox.counter, outbox.counter_log, outbox.sample, outbox.running, outbox.relay`,
		`INSERT INTO outbox.task (task_type, payload, state, run_at, priority, attempt, ordering_key, relay_id, lease_token)
			SELECT CASE WHEN i > $1::int - 50 THEN 'RARE' ELSE 'A' END, '{"user_id": 12345, "text": "some that an ordinary task would have"}', s.state,
			       CASE s.state WHEN 'scheduled' THEN now() + i / $2::int * interval '1 second' ELSE now() END, i % 3, i % 2,
			       CASE s.state WHEN 'waiting' THEN 'key ' || i % 1000 END, CASE s.state WHEN 'leased' THEN '` + liveRelay + `'::uuid END, CASE s.state WHEN 'leased' THEN '` + liveRelay + `'::uuid END
			  FROM generate_series(1, $1::int) i, (VALUES ('ready'), ('scheduled'), ('waiting'), ('leased')) s (state) WHERE s.state <> 'leased' OR i > $1::int - 300`,
		`INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
			SELECT 100000000 + i, now(), now(), now() - i * interval '1 second', 0, 1, 1, 'handler', CASE WHEN i > $1::int - 50 THEN 'RARE' ELSE 'A' END, '{}', 'boom' || $2::int
			  FROM generate_series(1, $1::int) i`,
		`INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
			SELECT 200000000 + i, now(), now(), now(), now() + interval '1 day', 0, $2::int % 2, CASE WHEN i <= 50 THEN 'RARE' ELSE 'A' END, '{}' FROM generate_series(1, $1::int) i`,
		`INSERT INTO outbox.counter (task_type, kind, tasks, arrived) SELECT a, k, $1::int, $2::int FROM unnest('{A,RARE}'::text[]) a, unnest('{ready,scheduled,waiting,dead,leased}'::text[]) k`,
		`INSERT INTO outbox.sample SELECT now() - m * interval '1 minute', $1::int, $2::int, 1, 1, 1, 1, 1, 1, a FROM generate_series(1, 1440) m, unnest('{"",A,RARE,B,C,D,E,F,G,H}'::text[]) a`,
		`INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('` + liveRelay + `', 'a', 8, now() + interval '1 hour', '{A,RARE}')`,
		`INSERT INTO outbox.running (task_id, token, relay_id) SELECT i, gen_random_uuid(), '` + liveRelay + `' FROM generate_series($2::int, $2::int + 300) i WHERE i < $1::int`,
	} {
		args := []any{n, 1}
		if !strings.Contains(statement, "$1") {
			args = nil
		}
		if _, err := tx.Exec(statement, args...); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tx, err := db.Begin()
		if err == nil {
			_, err = tx.Exec(`SET LOCAL session_replication_role = replica`)
		}
		if err == nil {
			_, err = tx.Exec(`TRUNCATE outbox.task, outbox.dead_task, outbox.done_task, outbox.counter, outbox.counter_log, outbox.running, outbox.relay`)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// explain runs a statement and returns its plan: for these arguments, or for any, as a driver may have it that keeps statements.
func explain(t *testing.T, db *database, s admin.Statement, generic bool) (p plan, text string) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var values []string
	for _, arg := range s.Args {
		if v, ok := arg.(driver.Valuer); ok {
			if arg, err = v.Value(); err != nil {
				t.Fatal(err)
			}
		}
		switch arg := arg.(type) {
		case nil:
			values = append(values, "NULL")
		case string:
			values = append(values, "'"+arg+"'")
		default:
			values = append(values, fmt.Sprint(arg))
		}
	}
	execute := "EXECUTE inspected"
	if len(values) > 0 {
		execute += "(" + strings.Join(values, ", ") + ")"
	}
	mode := map[bool]string{false: "force_custom_plan", true: "force_generic_plan"}[generic]
	for _, statement := range []string{"SET LOCAL plan_cache_mode = " + mode, "PREPARE inspected AS " + s.Query} {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	err = tx.QueryRow("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + execute).Scan(&text)
	if err == nil {
		_, err = tx.Exec("DEALLOCATE inspected")
	}
	var out []struct{ Plan plan }
	if err = errors.Join(err, json.Unmarshal([]byte(text), &out)); err != nil {
		t.Fatalf("%s: %v", s.Query, err)
	}
	return out[0].Plan, text
}

// I10 of what operators see: a page, a task and the lists of relays and types cost the same wherever they are, with 30,000 tasks in each state as with
// 1,000,000 (OUTBOX_TEST_LONG=1).
func TestEveryStatementCostsTheSameAtAnyNumberOfTasks(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	n := 30_000
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		n = 1_000_000
	}
	db := relaytest.NewDatabase(t)
	began := time.Now()
	huge(t, db, n)
	// As if the sample of ANALYZE had met no task of RARE: a generic plan assumes a single type then.
	for _, table := range []string{"task", "dead_task", "done_task"} {
		db.Do(t, `ALTER TABLE outbox.`+table+` ALTER task_type SET (n_distinct = 1)`)
	}
	for _, table := range []string{"task", "dead_task", "done_task", "running", "relay", "sample", "counter"} {
		db.Do(t, `VACUUM ANALYZE outbox.`+table)
	}
	t.Logf("%d tasks in each state after %v", n, time.Since(began).Round(time.Second))
	cost(t, db, liveStatements(t, db, n), false, true)
	// Those that redrive leave dead rows behind, for which the others would pay. Nothing keeps them for other arguments.
	cost(t, db, deadStatements(t, db, n), false)
}

func cost(t *testing.T, db *database, all map[string]bounded, generic ...bool) {
	t.Helper()
	small := []string{"relay", "running", "schedule", "task_type", "counter", "counter_log"}
	for name, s := range all {
		for _, generic := range generic {
			p, text := explain(t, db, s.Statement, generic)
			for _, table := range p.reads() {
				if !slices.Contains(small, table) {
					t.Errorf("%s (generic %t) reads the whole table %s:\n%s", name, generic, table, text)
				}
			}
			if pages := p.Hit + p.Read; pages > s.pages || strings.Contains(text, `"External`) {
				t.Errorf("%s (generic %t) reads %d pages, want %d at most, and no sort on disk:\n%s", name, generic, pages, s.pages, text)
			}
			// Two ends of a page are not two filters, each of which lets half of all through: at a few million that is a plan with workers and JIT.
			if n := p.expects(); name == "count all" && n > 2*2000 {
				t.Errorf("%s expects %d rows, want about 2,000:\n%s", name, n, text)
			}
		}
	}
}

// bounded is a statement that reads so many pages at most.
type bounded struct {
	admin.Statement
	pages int
}

// liveStatements are those of tasks, relays and types.
func liveStatements(t *testing.T, db *database, n int) map[string]bounded {
	t.Helper()
	middle := db.Int(t, `SELECT max(task_id) / 2 FROM outbox.task`)
	all := map[string]bounded{}
	for name, s := range admin.Statements(int64(middle), "A") {
		all[name] = bounded{s, map[string]int{"runs of relays": 4000, "samples": 3000}[name] + 100}
	}
	all["stats"] = bounded{admin.Statement{Query: counts.SQL}, 100}
	for state, o := range listed {
		for _, taskType := range []string{"A", "RARE", ""} {
			if taskType == "" && state != admin.Dead && state != admin.Finished {
				continue
			}
			// From the beginning, from the middle, from the end.
			places := []string{""}
			if taskType == "A" && state != admin.Leased {
				for _, at := range []int{n / 2, n - 100} {
					var id int64
					if err := db.QueryRow(o.order+` OFFSET $1 LIMIT 1`, at).Scan(&id); err != nil {
						t.Fatal(err)
					}
					task, err := client(t, db.DB).Task(t.Context(), id)
					if err != nil {
						t.Fatal(err)
					}
					places = append(places, admin.PlaceOf(task))
				}
			}
			for i, place := range places {
				all[string(state)+" "+taskType+" "+[]string{"first", "middle", "last"}[i]] = bounded{admin.TasksStatement(taskType, state, place, 100), 250}
			}
		}
	}
	return all
}

// deadStatements are those of dead letters by a filter.
func deadStatements(t *testing.T, db *database, n int) map[string]bounded {
	t.Helper()
	c := client(t, db.DB)
	middle, err := c.Task(t.Context(), int64(100_000_000+n/2))
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
	at := admin.PlaceOf(middle)
	old := admin.Filter{OlderThan: time.Duration(n-5000) * time.Second}
	rare, common := admin.Filter{Type: "RARE"}, admin.Filter{Type: "A"}
	none, noneOf := admin.Filter{Error: "no such"}, admin.Filter{Error: "no such", Type: "A"}
	noneSince := admin.Filter{Error: "no such", DiedAfter: middle.EndedAt.Add(-time.Hour)}
	searched, ofNone := page(none, at, 2000, false), page(noneOf, at, 2000, false)
	takenNone, takenOfNone, takenSince := page(none, at, 10_000, true), page(noneOf, at, 10_000, true), page(noneSince, at, 10_000, true)
	return map[string]bounded{
		"list by time":        {page(admin.Filter{DiedAfter: middle.EndedAt, DiedBefore: middle.EndedAt.Add(time.Minute)}, "", 0, false).List, 200},
		"list by age":         {page(old, "", 0, false).List, 400},
		"redrive by id":       {page(admin.Filter{IDs: []int64{1, 2, middle.TaskID}}, "", 0, true).Redrive, 200},
		"redrive all":         {page(admin.Filter{}, at, 0, true).Redrive, 20_000}, // 1,000 rows through eight indexes
		"redrive a type":      {page(common, at, 0, true).Redrive, 20_000},
		"redrive a rare type": {page(rare, at, 0, true).Redrive, 20_000},
		"redrive by error":    {page(admin.Filter{Error: "boom"}, at, 10_000, true).Redrive, 20_000},
		"purge all":           {page(admin.Filter{}, at, 0, true).Purge, 10_000},
		"purge a rare type":   {page(rare, at, 0, true).Purge, 10_000},
		"purge by age":        {page(old, "", 0, true).Purge, 10_000},
		"end of a type":       {takenOfNone.End, 400},
		"end since":           {takenSince.End, 400},
		"end of a list":       {searched.End, 400},
		"list none":           {searched.List, 400},
		"list none of one":    {ofNone.List, 400},
		"count all":           {page(admin.Filter{}, at, 2000, false).Count, 400},
		"count none since":    {page(noneSince, at, 2000, false).Count, 400},
		"count a type":        {page(common, at, 2000, false).Count, 400},
		"redrive none":        {takenNone.Redrive, 1000},
		"purge none since":    {takenSince.Purge, 1000},
		"redrive none of one": {takenOfNone.Redrive, 1000},
	}
}
