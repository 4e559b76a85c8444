package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// database has the outbox's schema. db looks at it from outside the transactions under test.
type database struct {
	url string
	db  *sql.DB
}

func newDatabase(t testing.TB, opts ...schema.Option) database {
	t.Helper()
	d := database{url: relaytest.Migrated(t, opts...)}
	d.db = open(t, "postgres", d.url)
	return d
}

func open(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	db, err := pgtest.Open(driver, url)
	return closing(t, db, err)
}

// direct is open for what needs a session or a driver as it is by default, whatever the tests run behind.
func direct(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	return closing(t, db, err)
}

func closing(t testing.TB, db *sql.DB, err error) *sql.DB {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(20) // a new connection costs more than most tests
	t.Cleanup(func() { db.Close() })
	return db
}

// withParameter is the database's URL with one more connection parameter.
func withParameter(t testing.TB, raw, key, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}

var typeNumber atomic.Int64

// newType is a task type that no other test uses.
func newType() string { return fmt.Sprintf("TYPE_%d", typeNumber.Add(1)) }

// stored is a row of outbox.task.
type stored struct {
	ID               int64
	Type, Payload    string
	Headers          sql.NullString
	Priority         int
	MaxAttempts      sql.NullInt64
	State            string
	Attempt          int
	RunAt, CreatedAt time.Time
}

// rows are the tasks of a type, as q sees them, by id.
func rows(t testing.TB, q outbox.Querier, taskType string) []stored {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), `
		SELECT task_id, task_type, payload::text, headers::text, priority, max_attempts, state, attempt, run_at, created_at
		  FROM outbox.task WHERE task_type = $1 ORDER BY task_id`, taskType)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var all []stored
	for rows.Next() {
		var s stored
		if err := rows.Scan(&s.ID, &s.Type, &s.Payload, &s.Headers, &s.Priority, &s.MaxAttempts, &s.State, &s.Attempt, &s.RunAt, &s.CreatedAt); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// one is the only task of a type.
func one(t testing.TB, q outbox.Querier, taskType string) stored {
	t.Helper()
	all := rows(t, q, taskType)
	if len(all) != 1 {
		t.Fatalf("got %d tasks of %s, want 1", len(all), taskType)
	}
	return all[0]
}

type welcome struct {
	UserID int    `json:"user_id"`
	Name   string `json:"name,omitempty"`
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	onEveryClient(t, []contract{
		{"a_task_exists_once_its_transaction_commits", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			got, err := outbox.Enqueue(t.Context(), tx.Querier, name, welcome{UserID: 7})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(rows(t, e.db, name)); n != 0 {
				t.Errorf("others see %d tasks before the commit, want 0", n)
			}
			if err := tx.commit(); err != nil {
				t.Fatal(err)
			}
			if s := one(t, e.db, name); s.ID != got.TaskID || s.Payload != `{"user_id": 7}` {
				t.Errorf("got task %d with %s, want %d with user 7", s.ID, s.Payload, got.TaskID)
			}
		}},
		{"no_task_exists_after_a_rollback", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			if _, err := outbox.Enqueue(t.Context(), tx.Querier, name, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{{Type: name}, {Type: name}}); err != nil {
				t.Fatal(err)
			}
			if n := len(rows(t, tx, name)); n != 3 {
				t.Errorf("the transaction sees %d tasks, want 3", n)
			}
			if err := tx.rollback(); err != nil {
				t.Fatal(err)
			}
			if n := len(rows(t, e.db, name)); n != 0 {
				t.Errorf("got %d tasks, want 0", n)
			}
		}},
		{"the_four_ways_to_enqueue_in_Go_store_equal_rows_with_one_statement_each", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			typed, payload := outbox.NewTaskType[welcome](name), welcome{UserID: 1, Name: "Ünal <&>"}
			if typed.Name() != name {
				t.Errorf("Name() = %q, want %q", typed.Name(), name)
			}
			opts := []outbox.Option{outbox.Priority(-3), outbox.MaxAttempts(4), outbox.Headers(map[string]string{"trace": "a\"b"})}
			for i, enqueue := range []func() error{
				func() error { _, err := typed.Enqueue(t.Context(), tx, payload, opts...); return err },
				func() error { _, err := outbox.Enqueue(t.Context(), tx, name, payload, opts...); return err },
				func() error {
					_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{typed.New(payload, opts...)})
					return err
				},
				func() error {
					_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{typed.New(payload, opts...), {Type: name, Payload: payload, Options: opts}})
					return err
				},
			} {
				tx.statements = 0
				if err := enqueue(); err != nil {
					t.Fatal(err)
				}
				if tx.statements != 1 {
					t.Errorf("way %d took %d statements, want 1", i, tx.statements)
				}
			}
			all := rows(t, tx, name)
			if len(all) != 5 {
				t.Fatalf("got %d tasks, want 5", len(all))
			}
			for _, s := range all[1:] {
				if s.ID = all[0].ID; !reflect.DeepEqual(s, all[0]) {
					t.Errorf("got %+v, want %+v", s, all[0])
				}
			}
		}},
		{"EnqueueMany_inserts_thousands_with_one_statement_and_ids_in_their_order", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			const n = 5000
			tasks := make([]outbox.NewTask, n)
			for i := range tasks {
				opts := []outbox.Option{outbox.Priority(i % 7)}
				switch i % 4 { // so that NULL stands beside values in every array
				case 1:
					opts = append(opts, outbox.MaxAttempts(i+1), outbox.RunAt(time.Now().Add(time.Hour)))
				case 2:
					opts = append(opts, outbox.Headers(map[string]string{"i": fmt.Sprint(i)}), outbox.After(time.Hour))
				}
				tasks[i] = outbox.NewTask{Type: name, Payload: i, Options: opts}
			}
			got, err := outbox.EnqueueMany(t.Context(), tx, tasks)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != n || tx.statements != 1 {
				t.Fatalf("got %d results of %d statements, want %d of 1", len(got), tx.statements, n)
			}
			for i, s := range rows(t, tx, name) {
				if s.ID != got[i].TaskID || s.Payload != fmt.Sprint(i) || s.Priority != i%7 {
					t.Fatalf("task %d: got id %d with payload %s and priority %d, want id %d", i, s.ID, s.Payload, s.Priority, got[i].TaskID)
				}
				if s.MaxAttempts.Valid != (i%4 == 1) || s.Headers.Valid != (i%4 == 2) || (s.State == "scheduled") != (i%4 == 1 || i%4 == 2) {
					t.Fatalf("task %d has another's options: %+v", i, s)
				}
			}
		}},
		{"EnqueueMany_of_nothing_sends_nothing", func(t *testing.T, e *env) {
			tx := e.tx(t)
			got, err := outbox.EnqueueMany(t.Context(), tx, nil)
			if len(got) != 0 || err != nil || tx.statements != 0 {
				t.Errorf("got %v, %v and %d statements, want nothing", got, err, tx.statements)
			}
		}},
		{"SERIALIZABLE_transactions_enqueue_side_by_side", func(t *testing.T, e *env) {
			name := newType()
			var txs []*recorder
			for range 3 {
				tx := e.tx(t)
				if _, err := tx.ExecContext(t.Context(), "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"); err != nil {
					t.Fatal(err)
				}
				txs = append(txs, tx)
			}
			for _, tx := range txs {
				if _, err := outbox.Enqueue(t.Context(), tx, name, 1); err != nil {
					t.Fatal(err)
				}
			}
			for _, tx := range txs {
				if err := tx.commit(); err != nil {
					t.Error(err)
				}
			}
			if n := len(rows(t, e.db, name)); n != len(txs) {
				t.Errorf("got %d tasks, want %d", n, len(txs))
			}
		}},
		{"an_error_of_the_database_is_wrapped_and_shows_no_payload", func(t *testing.T, e *env) {
			tx := e.tx(t)
			for _, tasks := range [][]outbox.NewTask{{{}}, {{}, {}}} {
				for i := range tasks {
					tasks[i] = outbox.NewTask{Type: "T", Payload: "secret-4711", Options: []outbox.Option{outbox.Schema("missing")}}
				}
				if _, err := tx.ExecContext(t.Context(), "SAVEPOINT s"); err != nil {
					t.Fatal(err)
				}
				_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
				if want := []string{"3F000", "42P01"}[len(tasks)-1]; sqlState(err) != want || !strings.HasPrefix(err.Error(), "outbox: enqueue ") || strings.Contains(err.Error(), "4711") {
					t.Errorf("%d tasks: got %v, want undefined schema (3F000) or table (42P01), wrapped", len(tasks), err)
				}
				if _, err := tx.ExecContext(t.Context(), "ROLLBACK TO s"); err != nil {
					t.Fatal(err)
				}
			}
		}},
	})
}

// sqlState is the SQLSTATE of an error of either driver.
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}
