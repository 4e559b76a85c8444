package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
)

// sample is a value of each type that columns of tasks have.
var sample = map[string]string{"text": "x", "jsonb": `{"a": "b"}`, "smallint": "7", "integer": "7", "bigint": "7", "boolean": "true",
	"uuid": "00000000-0000-4000-8000-000000000001", "timestamp with time zone": "2020-02-02 02:02:02.020202+00"}

// ofAttempts are the columns that each way of a task changes.
var ofAttempts = []string{"task_id", "task_type", "state", "attempt", "attempted_at", "timeline", "leased_until",
	"relay_id", "lease_token", "group_place"}

// A column that a task alone of all has is still there after each way that a task can go. A new column
// needs no line here.
func TestEachColumnOfATaskSurvivesItsWays(t *testing.T) {
	t.Parallel()
	failed := Change{Attempt: 1, Err: errors.New("no"), Failed: true}
	dead := Change{Attempt: 1, Err: errors.New("no"), Failed: true, Reason: outbox.ReasonHandler}
	redrive := func(t *testing.T, db *sql.DB) {
		t.Helper()
		a, err := admin.New(db, admin.Config{Actor: "test", Tool: "test"})
		if err == nil {
			_, err = a.Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []struct {
		name, table string
		changes     string // what it changes besides
		run         func(t *testing.T, s *Store, db *sql.DB)
	}{
		{"retry", "task", "run_at last_error", deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error {
			return s.WriteBack(ctx, c, r, failed)
		})},
		{"snooze", "task", "run_at", deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error {
			return s.WriteBack(ctx, c, r, Change{Wait: time.Hour, Untried: true})
		})},
		{"RunAgain", "task", "run_at last_error iterations", deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error {
			return s.WriteBack(ctx, c, r, Change{Again: true})
		})},
		{"death", "dead_task", "last_error max_attempts", deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error { return s.WriteDead(ctx, c, r, dead) })},
		{"history", "done_task", "last_error", deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error {
			r.Finish = &Finish{Outcome: "done"}
			return s.Keep(ctx, c, time.Hour, []*Row{r})
		})},
		{"retry of a lease", "task", "run_at last_error", leased(func(e *LeaseEnd) { e.Change = failed })},
		{"RunAgain of a lease", "task", "run_at last_error iterations", leased(func(e *LeaseEnd) { e.Change = Change{Again: true} })},
		{"death of a lease", "dead_task", "last_error max_attempts", leased(func(e *LeaseEnd) { e.Change = dead })},
		{"history of a lease", "done_task", "last_error", leased(func(e *LeaseEnd) {
			e.Done, e.Keep, e.Finish = true, time.Hour, &Finish{Outcome: "done"}
		})},
		{"redrive", "task", "run_at last_error expires_at unique_until", func(t *testing.T, s *Store, db *sql.DB) {
			deleted(func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error { return s.WriteDead(ctx, c, r, dead) })(t, s, db)
			redrive(t, db)
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s, db := newStore(t)
			names, values := eachColumn(t, db)
			for _, table := range []string{"task", "dead_task", "done_task"} { // a column of the app's own refuses no way
				if _, err := db.Exec(`ALTER TABLE outbox.` + table + ` ADD COLUMN of_` + table + ` timestamptz NOT NULL DEFAULT clock_timestamp()`); err != nil {
					t.Fatal(err)
				}
			}
			null := len(names) + 1 // a payload that is null in JSON, and a value in SQL
			if _, err := db.Exec(`INSERT INTO outbox.task (task_type, payload) VALUES ('T', 'null')`); err != nil {
				t.Fatal(err)
			}
			way.run(t, s, db)
			checked := 0
			var payload sql.NullString
			err := db.QueryRow(fmt.Sprintf(`SELECT payload FROM outbox.%s WHERE task_id = $1`, way.table), null).Scan(&payload)
			if err != nil || payload.String != "null" {
				t.Errorf("a payload of null is %v, %v", payload, err)
			}
			for i, name := range names {
				var got string
				err := db.QueryRow(fmt.Sprintf(`SELECT COALESCE(to_jsonb(t) ->> $1, 'NULL') FROM outbox.%s t WHERE task_id = $2`, way.table), name, i+1).Scan(&got)
				if err != nil {
					t.Fatalf("the task with %s: %v", name, err)
				}
				if !slices.Contains(append(strings.Fields(way.changes), ofAttempts...), name) {
					checked++
					if got != values[i] {
						t.Errorf("%s is %s, want %s", name, got, values[i])
					}
				}
			}
			if checked < 8 {
				t.Errorf("only %d columns were checked", checked)
			}
		})
	}
}

// A unique key changes nothing of a task's other columns. Replace gives the task those of its Enqueue.
func TestAKeyedTaskHasEachColumnThatAnAppSets(t *testing.T) {
	t.Parallel()
	_, db := newStore(t)
	names, samples := columnsOf(t, db, "keyed_task")
	value := func(name string, id int) (value string) {
		t.Helper()
		err := db.QueryRow(`SELECT COALESCE(to_jsonb(t) ->> $1, 'NULL') FROM outbox.task t WHERE task_id = $2`, name, id).Scan(&value)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	insert := func(columns ...string) (id int) { // names and values in turn
		t.Helper()
		names, values := "task_type", "'T'"
		for i := 0; i < len(columns); i += 2 {
			names, values = names+", "+columns[i], values+", "+pq.QuoteLiteral(columns[i+1])
		}
		err := db.QueryRow(`INSERT INTO outbox.keyed_task (` + names + `) VALUES (` + values + `) RETURNING task_id`).Scan(&id)
		if err != nil {
			t.Fatal(names, err)
		}
		return id
	}
	checked := 0
	for i, name := range names {
		if slices.Contains(strings.Fields("task_id task_type unique_key on_conflict outcome position"), name) {
			continue
		}
		checked++
		if name == "expires_at" { // a task that has expired has no key
			samples[i] = strings.Replace(samples[i], "2020", "2099", 1)
		}
		key := "key of " + name
		set := value(name, insert(name, samples[i]))
		id := insert(name, samples[i], "unique_key", key)
		if got := value(name, id); got != set {
			t.Errorf("%s of a task with a key is %s, want %s", name, got, set)
		}
		kept := slices.Contains(strings.Fields("ordering_key group_key skip_failed unique_until_done unique_until"), name)
		insert("unique_key", key, "on_conflict", "replace")
		if got := value(name, id); (got == set) != kept {
			t.Errorf("%s of a task that was replaced without it is %s", name, got)
		}
		insert(name, samples[i], "unique_key", key, "on_conflict", "replace")
		if got := value(name, id); got != set {
			t.Errorf("%s of a task that was replaced with it is %s, want %s", name, got, set)
		}
	}
	if checked < 8 {
		t.Errorf("only %d columns were checked", checked)
	}
}

// The field of a column that Fill forgot would be zero in each handler.
func TestFillSetsEachFieldOfATask(t *testing.T) {
	t.Parallel()
	_, db := newStore(t)
	names, samples := columnsOf(t, db, "task")
	row := map[string]any{}
	for i, name := range names {
		if row[name] = samples[i]; json.Valid([]byte(samples[i])) {
			row[name] = json.RawMessage(samples[i])
		}
	}
	row["timeline"] = json.RawMessage(`[{"event": "failed", "attempt": 1}]`)
	of, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	var text string
	claimed := `SELECT outbox.claimed(jsonb_populate_record(NULL::outbox.task, $1))`
	if err := db.QueryRow(claimed, string(of)).Scan(&text); err != nil {
		t.Fatal(err)
	}
	identity := &Identity{}
	identity.Set("d")
	r, task := Row{TaskType: "T"}, Task{}
	if _, err := r.FromText(text); err != nil {
		t.Fatal(err)
	}
	r.Fill(&task, identity, 2)
	for i, fields := 0, reflect.ValueOf(task); i < fields.NumField(); i++ {
		if name := fields.Type().Field(i).Name; name != "run" && fields.Field(i).IsZero() {
			t.Errorf("Fill leaves %s at zero", name)
		}
	}
}

// columnsOf returns the columns of a table or view, with a value of each.
func columnsOf(t *testing.T, db *sql.DB, table string) (names, samples []string) {
	t.Helper()
	rows, err := db.Query(`SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = ('outbox.' || $1)::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, table)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, of string
		if err := rows.Scan(&name, &of); err != nil {
			t.Fatal(err)
		}
		if sample[of] == "" {
			t.Fatalf("there is no sample of the type %s", of)
		}
		names, samples = append(names, name), append(samples, sample[of])
	}
	return names, samples
}

// eachColumn makes a ready task for each column, with a value in this one only.
func eachColumn(t *testing.T, db *sql.DB) (names, values []string) {
	t.Helper()
	names, values = columnsOf(t, db, "task")
	for i, name := range names {
		var id int
		if err := db.QueryRow(`INSERT INTO outbox.task (task_type) VALUES ('T') RETURNING task_id`).Scan(&id); err != nil || id != i+1 {
			t.Fatal(id, err)
		}
		if !slices.Contains(ofAttempts, name) {
			set := fmt.Sprintf(`UPDATE outbox.task SET %s = $1, group_place = CASE '%[1]s' WHEN 'group_key' THEN 1 END
				WHERE task_id = $2 RETURNING to_jsonb(task) ->> '%[1]s'`, name)
			if err := db.QueryRow(set, values[i], id).Scan(&values[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return names, values
}

// deleted claims all tasks as for a Tx handler, and ends each.
func deleted(end func(ctx context.Context, s *Store, c pg.Exclusive, r *Row) error) func(t *testing.T, s *Store, db *sql.DB) {
	return func(t *testing.T, s *Store, db *sql.DB) {
		t.Helper()
		ctx := t.Context()
		conn, err := db.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		err = s.Conns.Raw(conn, func(c pg.Exclusive) error {
			if _, err := c.ExecContext(ctx, "BEGIN"); err != nil {
				return err
			}
			terms := ClaimTx{TaskType: "T", MaxAttempts: 5, Timeout: time.Minute, Idle: time.Minute, Savepoint: "s"}
			claimed, err := s.Claim(ctx, c, terms, plan.Start{}, 1000)
			for _, r := range claimed.Rows {
				err = errors.Join(err, end(ctx, s, c, r))
			}
			if err == nil {
				_, err = c.ExecContext(ctx, "COMMIT")
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// leased leases all tasks, and ends each lease.
func leased(end func(e *LeaseEnd)) func(t *testing.T, s *Store, db *sql.DB) {
	return func(t *testing.T, s *Store, db *sql.DB) {
		t.Helper()
		token := NewUUID()
		claimed, err := s.Lease(t.Context(), LeaseTerms{TaskType: "T", MaxAttempts: 5, Token: token}, plan.Start{}, 1000, func([]*Row) {})
		if err != nil {
			t.Fatal(err)
		}
		var group []*LeaseEnd
		for _, r := range claimed.Rows {
			e := &LeaseEnd{Row: r, Token: token}
			end(e)
			group = append(group, e)
		}
		if err := s.EndLeases(group); err != nil {
			t.Fatal(err)
		}
	}
}
