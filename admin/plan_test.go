package admin_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
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

// huge makes a table of n tasks of the type A in each state that many tasks may be in, with a few
// of the type RARE behind, and of as many dead and finished ones. Triggers do not fire: counts are
// written for the types.
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

// statement is one that a client sends.
type statement struct {
	query string
	args  []any
}

// recorder keeps the statements that a client sends, and has the database answer those that change
// nothing.
type recorder struct {
	outbox.Querier
	sent []statement
}

var errRecorded = errors.New("it changes something")

func (r *recorder) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	r.sent = append(r.sent, statement{query, args})
	if strings.Contains(query, "DELETE FROM") {
		return nil, errRecorded
	}
	return r.Querier.QueryContext(ctx, query, args...)
}

func (r *recorder) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	r.sent = append(r.sent, statement{query, args})
	return r.Querier.QueryRowContext(ctx, query, args...)
}

// explain runs a statement and returns its plan: for these arguments, or for any, as a driver may
// have it that keeps statements.
func explain(t *testing.T, db *database, s statement, generic bool) (p plan, text string) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var values []string
	for _, arg := range s.args {
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
	for _, statement := range []string{"SET LOCAL plan_cache_mode = " + mode, "PREPARE inspected AS " + s.query} {
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
		t.Fatalf("%s: %v", s.query, err)
	}
	return out[0].Plan, text
}
