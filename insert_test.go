package outbox_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/schema"
)

func TestPlainSQLInsertsEqualEnqueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	exec(t, tx, `CREATE TABLE usr (usr_id bigint PRIMARY KEY, email text)`)
	if _, err := outbox.Enqueue(t.Context(), tx, "T", map[string]int{"usr_id": 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{
		{Type: "T", Payload: map[string]int{"usr_id": 5}}, {Type: "T", Payload: map[string]int{"usr_id": 5}}}); err != nil {
		t.Fatal(err)
	}
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) VALUES ('T', '{"usr_id": 5}')`)
	exec(t, tx, `WITH u AS (INSERT INTO usr VALUES (5, 'a@example.com') RETURNING usr_id)
		INSERT INTO outbox.task (task_type, payload) SELECT 'T', jsonb_build_object('usr_id', usr_id) FROM u`)
	var n, kinds int
	err := tx.QueryRow(`SELECT count(*), count(DISTINCT to_jsonb(t) - 'task_id') FROM outbox.task t`).Scan(&n, &kinds)
	if n != 5 || kinds != 1 || err != nil {
		t.Errorf("got %d tasks of %d kinds, %v; want 5 of 1 kind", n, kinds, err)
	}
}

func TestTheTableRefusesRowsThatNoRelayCouldRun(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	for _, c := range []struct{ columns, values, violates string }{
		{"task_type", "''", "task_type_check"},
		{"task_type", "repeat('x', 129)", "task_type_check"},
		{"task_type", "repeat('ä', 65)", "task_type_check"},
		{"task_type", `E'a\nb'`, "task_type_check"},
		{"task_type", "NULL", "23502"},
		{"task_type, payload", "'T', NULL", "23502"},
		{"task_type, state", "'T', 'done'", "task_state_check"},
		{"task_type, state", "'T', 'waiting'", "task_state_check"},
		{"task_type, timeout_ms", "'T', 0", "task_timeout_check"},
		{"task_type, ordering_key", "'T', ''", "task_ordering_check"},
		{"task_type, ordering_key", "'T', repeat('x', 257)", "task_ordering_check"},
		{"task_type, unique_key", "'T', ''", "unique_key_length_check"},
		{"task_type, state", "'T', 'leased'", "task_lease_check"},
		{"task_type, lease_token", "'T', gen_random_uuid()", "task_lease_check"},
		{"task_type, leased_until", "'T', now()", "task_lease_check"},
		{"task_type, attempt", "'T', -1", "task_attempt_check"},
		{"task_type, max_attempts", "'T', 0", "task_max_attempts_check"},
		{"task_type, headers", "'T', '[]'", "task_headers_check"},
		{"task_type, run_at", "'T', 'infinity'", "task_time_check"},
		{"task_type, run_at", "'T', '-infinity'", "task_time_check"},
		{"task_id, task_type", "1, 'T'", "428C9"}, // ids are the sequence's
	} {
		exec(t, tx, "SAVEPOINT s")
		_, err := tx.Exec("INSERT INTO outbox.task (" + c.columns + ") VALUES (" + c.values + ")")
		var e *pq.Error
		if !errors.As(err, &e) || e.Constraint != c.violates && string(e.Code) != c.violates {
			t.Errorf("%s = %s: got %v, want a violation of %s", c.columns, c.values, err, c.violates)
		}
		exec(t, tx, "ROLLBACK TO s")
	}
}

func TestEnqueueUsesTheNamedSchemaAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, name := range []string{"app_outbox", "user", strings.Repeat("s", 63)} { // user is a reserved word
		if err := schema.Migrate(t.Context(), d.db, schema.Schema(name)); err != nil {
			t.Fatal(err)
		}
		tx := begin(t, d.db)
		exec(t, tx, "SET LOCAL search_path = pg_catalog")
		typed := outbox.NewTaskType[int]("T", outbox.Schema(name))
		if _, err := typed.Enqueue(t.Context(), tx, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{typed.New(2), typed.New(3)}); err != nil {
			t.Fatal(err)
		}
		var there, elsewhere int
		err := tx.QueryRow(`SELECT (SELECT count(*) FROM "`+name+`".task), (SELECT count(*) FROM outbox.task)`).Scan(&there, &elsewhere)
		if there != 3 || elsewhere != 0 || err != nil {
			t.Errorf("%s: got %d tasks there and %d in outbox, %v; want 3 and 0", name, there, elsewhere, err)
		}
	}
}

func TestARoleThatMayOnlyInsertEnqueues(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	role, password := "outbox_test_"+strings.ToLower(rand.Text()), rand.Text()
	exec(t, d.db, `CREATE ROLE `+role+` LOGIN PASSWORD '`+password+`'`)
	t.Cleanup(func() {
		if _, err := d.db.Exec(`DROP OWNED BY ` + role + `; DROP ROLE ` + role); err != nil {
			t.Error(err)
		}
	})
	exec(t, d.db, `GRANT USAGE ON SCHEMA outbox TO `+role)
	exec(t, d.db, `GRANT INSERT, SELECT (task_id) ON outbox.task TO `+role)
	exec(t, d.db, `SELECT setval('outbox.wake', extract(epoch FROM now())::bigint + 3600)`) // so the triggers run through
	u, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, password)
	db := open(t, "postgres", u.String())
	tx := begin(t, db)
	if _, err := outbox.Enqueue(t.Context(), tx, "T", 1, outbox.After(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{{Type: "T"}, {Type: "T"}}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := len(rows(t, d.db, "T")); n != 3 {
		t.Errorf("got %d tasks, want 3", n)
	}
	for _, forbidden := range []string{"SELECT payload FROM outbox.task", "DELETE FROM outbox.task", "UPDATE outbox.task SET priority = 0", "SELECT * FROM outbox.dead_task"} {
		if _, err := db.Exec(forbidden); sqlState(err) != "42501" {
			t.Errorf("%s: got %v, want insufficient_privilege (42501)", forbidden, err)
		}
	}
}

func TestEnqueueWaitsForNoHandler(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	for range 3 {
		if _, err := outbox.Enqueue(t.Context(), tx, "T", 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	claim := begin(t, d.db) // stays open, as while a handler runs
	exec(t, claim, `DELETE FROM outbox.task WHERE task_id = (SELECT min(task_id) FROM outbox.task)`)
	exec(t, claim, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()
		WHERE task_id = (SELECT min(task_id) FROM outbox.task)`)
	tx = begin(t, d.db)
	exec(t, tx, `SET LOCAL lock_timeout = '1ms'`) // any wait for a lock is an error
	if _, err := outbox.Enqueue(t.Context(), tx, "T", 1); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
}

// PostgreSQL drops the connection, and with it the caller's transaction, at a message of 1 GiB.
func TestEnqueueManyRefusesMoreThanOneStatementCanCarry(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	d := newDatabase(t)
	tx := &recorder{transaction: transaction{Querier: begin(t, d.db)}}
	big := json.RawMessage(`"` + strings.Repeat("x", 16<<20-2) + `"`)
	tasks := make([]outbox.NewTask, 17)
	for i := range tasks {
		tasks[i] = outbox.NewTask{Type: "T", Payload: big, Options: []outbox.Option{outbox.MaxPayload(len(big))}}
	}
	_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
	if !errors.Is(err, outbox.ErrPayloadTooLarge) || tx.statements != 0 || !strings.Contains(err.Error(), "task 15 of 17") {
		t.Errorf("got %v after %d statements, want ErrPayloadTooLarge for task 15 before any", err, tx.statements)
	}
	exec(t, tx, "SELECT 1")
}

func TestADroppedRowIsAnErrorAndNotAMissingTask(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	exec(t, d.db, `CREATE TRIGGER drop_row BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.priority = 1) EXECUTE FUNCTION drop_row()`)
	tx := begin(t, d.db)
	dropped := outbox.NewTask{Type: "T", Options: []outbox.Option{outbox.Priority(1)}}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{dropped}); err == nil {
		t.Errorf("got %v, want an error for one task", got)
	}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{{Type: "T"}, dropped}); err == nil {
		t.Errorf("got %v, want an error for two tasks", got)
	}
}
