package admin_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

type database = relaytest.Database

// drivers are lib/pq and pgx, or the one that OUTBOX_TEST_DRIVER names.
func drivers() []string {
	if os.Getenv("OUTBOX_TEST_DRIVER") != "" {
		return []string{relaytest.DriverName()}
	}
	return []string{"postgres", "pgx"}
}

func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range drivers() {
		t.Run(driver, func(t *testing.T) { test(t, relaytest.NewDatabase(t, driver)) })
	}
}

// client is one of the database's outbox; its actions are noted if the options say so.
func client(t testing.TB, db *sql.DB, o ...admin.Config) *admin.Client {
	t.Helper()
	c, err := admin.New(db, append(o, admin.Config{})[0])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// unreachable is a client of no server: any SQL would fail.
func unreachable(t testing.TB) *admin.Client {
	t.Helper()
	db, err := sql.Open("postgres", "postgres://127.0.0.1:1/nowhere?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return client(t, db)
}

// bury writes n dead letters of a type that died the given number of minutes ago, each a second
// before the next, with ids from first on.
func bury(t testing.TB, db *database, taskType, reason, text string, first, n, minutesAgo int) {
	t.Helper()
	db.Do(t, `WITH enqueued AS (
			INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, $5::int, $1, 'ready'))
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts,
		       reason, task_type, payload, headers, last_error, task_max_attempts)
		SELECT i, now() - interval '2 days', now() - interval '3 days', now() - interval '1 day',
		       now() - $6::int * interval '1 minute' + (i - $4::int) * interval '1 second', 3, 5, 5, $2, $1,
		       jsonb_build_object('n', i), '{"trace": "x"}', $3, CASE WHEN i % 2 = 0 THEN 5 END
		  FROM generate_series($4::int, $4::int + $5::int - 1) i`, taskType, reason, text, first, n, minutesAgo)
}

// fill writes a row that has a value in each column, which says n, but for those that are given.
// Its id is n.
func fill(t testing.TB, db *database, table string, n int, given map[string]any) {
	t.Helper()
	rows, err := db.Query(`SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = 'outbox.` + table + `'::regclass AND attnum > 0 AND NOT attisdropped`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	row := map[string]any{}
	for rows.Next() {
		var name, of string
		if err := rows.Scan(&name, &of); err != nil {
			t.Fatal(err)
		}
		switch of {
		case "text":
			row[name] = fmt.Sprint(name, " ", n)
		case "smallint", "integer", "bigint":
			row[name] = n
		case "boolean":
			row[name] = true
		case "jsonb":
			row[name] = map[string]int{"n": n}
		case "uuid":
			row[name] = fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
		case "timestamp with time zone":
			row[name] = time.Date(2020, 1, n, 0, 0, 0, 0, time.UTC)
		default:
			t.Fatalf("there is no value of the type %s", of)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	row["timeline"] = []map[string]any{{"event": "failed", "attempt": n}}
	maps.Copy(row, given)
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	db.Do(t, `INSERT INTO outbox.`+table+` OVERRIDING SYSTEM VALUE
		SELECT * FROM jsonb_populate_record(NULL::outbox.`+table+`, $1::text::jsonb)`, string(text))
}

// begin begins a transaction, which the test's end rolls back.
func begin(t testing.TB, db *database) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// addRelay writes a relay that lives so long from now on.
func addRelay(t testing.TB, db *database, id, alive, types string) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'host', 7, clock_timestamp() + $2::interval, $3::text[])`, id, alive, types)
}

// lease writes n leased tasks of a relay.
func lease(t testing.TB, db *database, relayID string, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, state, relay_id, lease_token, attempted_at)
		SELECT 'HELD', 'leased', $1, gen_random_uuid(), now() FROM generate_series(1, $2::int)`, relayID, n)
}

const (
	deadRelay = "dddddddd-0000-4000-8000-000000000000"
	liveRelay = "eeeeeeee-0000-4000-8000-000000000000"
)

// pages reads a list to its end, and returns how many pages it has.
func pages[T any](t testing.TB, limit int, read func(after string) ([]T, string, error)) (all []T, n int) {
	t.Helper()
	for after := ""; ; n++ {
		page, next, err := read(after)
		if err != nil || len(page) > limit || next != "" && next == after {
			t.Fatalf("page %d, after %q: %d rows, next %q, %v", n, after, len(page), next, err)
		}
		all = append(all, page...)
		if after = next; next == "" {
			return all, n + 1
		}
	}
}

// tasksOf and entriesOf are the rows of a page and the place of the next one.
func tasksOf(p admin.TaskPage, err error) ([]admin.Task, string, error) { return p.Tasks, p.Next, err }

func entriesOf(p admin.AuditPage, err error) ([]admin.AuditEntry, string, error) {
	return p.Entries, p.Next, err
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }

func ids(tasks []admin.Task) (out []int64) {
	for _, t := range tasks {
		out = append(out, t.ID)
	}
	return out
}

func enqueue(t *testing.T, db *database, taskType string, payload any, opts ...outbox.Option) int64 {
	t.Helper()
	var id int64
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		got, err := outbox.Enqueue(context.WithoutCancel(t.Context()), tx, taskType, payload, opts...)
		id = got.ID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}
