package admin_test

import (
	"database/sql"
	"encoding/json"
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
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var values []string
	for _, arg := range s.Args {
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
	if err := tx.QueryRow("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + execute).Scan(&text); err != nil {
		t.Fatalf("%s: %v", s.Query, err)
	}
	if _, err := tx.Exec("DEALLOCATE inspected"); err != nil {
		t.Fatal(err)
	}
	var out []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
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
	for _, generic := range []bool{false, true} {
		costs(t, db, n, generic)
	}
}

func costs(t *testing.T, db *database, n int, generic bool) {
	t.Helper()
	middle := db.Int(t, `SELECT max(task_id) / 2 FROM outbox.task`)
	type statement struct {
		admin.Statement
		pages int // at most
	}
	all := map[string]statement{}
	for name, s := range admin.Statements(int64(middle), "A") {
		all[name] = statement{s, map[string]int{"runs of relays": 4000, "samples": 3000}[name] + 100}
	}
	all["stats"] = statement{admin.Statement{Query: counts.SQL}, 100}
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
				all[string(state)+" "+taskType+" "+[]string{"first", "middle", "last"}[i]] = statement{admin.TasksStatement(taskType, state, place, 100), 250}
			}
		}
	}
	small := []string{"relay", "running", "schedule", "task_type", "counter", "counter_log"}
	for name, s := range all {
		p, text := explain(t, db, s.Statement, generic)
		for _, table := range p.reads() {
			if !slices.Contains(small, table) {
				t.Errorf("%s (generic %t) reads the whole table %s:\n%s", name, generic, table, text)
			}
		}
		if pages := p.Hit + p.Read; pages > s.pages {
			t.Errorf("%s (generic %t) reads %d pages, want %d at most:\n%s", name, generic, pages, s.pages, text)
		} else {
			t.Logf("%s: %d pages", name, pages)
		}
	}
}
