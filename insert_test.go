package outbox_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/schema"
)

func TestPlainSQLInsertsEqualEnqueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	exec(t, tx, `CREATE TABLE usr (usr_id bigint PRIMARY KEY, email text)`)
	put(t, tx, "T", map[string]int{"usr_id": 5})
	same := outbox.TaskSpec{Type: "T", Payload: map[string]int{"usr_id": 5}}
	putMany(t, tx, same, same)
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) VALUES ('T', '{"usr_id": 5}')`)
	exec(t, tx, `WITH u AS (INSERT INTO usr VALUES (5, 'a@example.com') RETURNING usr_id)
		INSERT INTO outbox.task (task_type, payload) SELECT 'T', jsonb_build_object('usr_id', usr_id) FROM u`)
	want(t, tx, "5 of 1", `SELECT count(*) || ' of ' || count(DISTINCT to_jsonb(t) - 'task_id')
		FROM outbox.task t`)
}

func TestEnqueueUsesTheNamedSchemaAndNoOther(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for _, name := range []string{"app_outbox", "user", strings.Repeat("s", 63)} { // user is a reserved word
		must(schema.Migrate(t.Context(), d.db, schema.Schema(name)))
		tx := begin(t, d.db)
		exec(t, tx, "SET LOCAL search_path = pg_catalog")
		typed := outbox.NewTaskType[int]("T", outbox.Schema(name))
		putMany(t, tx, typed.New(1))
		putMany(t, tx, typed.New(2), typed.New(3))
		putMany(t, tx, typed.New(4, outbox.Unique("k")))
		want(t, tx, 4, `SELECT count(*) FROM "`+name+`".task`)
		want(t, tx, 0, `SELECT count(*) FROM outbox.task`)
		stats, err := outbox.Stats(t.Context(), tx, outbox.Schema(name))
		if err != nil || len(stats) != 1 || stats[0].Ready != 4 {
			t.Errorf("got the counts %+v, %v; want 4 ready ones", stats, err)
		}
	}
}

// PostgreSQL drops the connection, and with it the caller's transaction, at a message of 1 GiB.
func TestEnqueueManyRefusesMoreThanOneStatementCanCarry(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	d := newDatabase(t)
	tx := &recorder{transaction: transaction{Querier: begin(t, d.db)}}
	big := json.RawMessage(`"` + strings.Repeat("x", 16<<20-2) + `"`)
	tasks := make([]outbox.TaskSpec, 17)
	for i := range tasks {
		tasks[i] = outbox.TaskSpec{Type: "T", Payload: big, Options: []outbox.Option{outbox.MaxPayload(len(big))}}
	}
	_, err := outbox.EnqueueMany(t.Context(), tx, tasks)
	if !errors.Is(err, outbox.ErrPayloadTooLarge) || tx.statements != 0 ||
		!strings.Contains(err.Error(), "task 15 of 17") {
		t.Errorf("got %v after %d statements, want ErrPayloadTooLarge for task 15 before any", err, tx.statements)
	}
	exec(t, tx, "SELECT 1")
}

func TestADroppedRowIsAnErrorAndNotAMissingTask(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `CREATE FUNCTION drop_row() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	exec(t, d.db, `CREATE TRIGGER drop_row BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.priority = 1)
		EXECUTE FUNCTION drop_row()`)
	tx := begin(t, d.db)
	dropped := outbox.TaskSpec{Type: "T", Options: []outbox.Option{outbox.Priority(1)}}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{dropped}); err == nil {
		t.Errorf("got %v, want an error for one task", got)
	}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{{Type: "T"}, dropped}); err == nil {
		t.Errorf("got %v, want an error for two tasks", got)
	}
	dropped.Options = append(dropped.Options, outbox.Unique("k"))
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.TaskSpec{dropped}); err == nil {
		t.Errorf("got %v, want an error for a task with a key", got)
	}
}
