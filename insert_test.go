package outbox_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/schema"
)

func TestPlainSQLInsertsEqualEnqueue(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := begin(t, d.db)
	exec(t, tx, `CREATE TABLE usr (usr_id bigint PRIMARY KEY, email text)`)
	put(t, tx, "T", map[string]int{"usr_id": 5})
	same := outbox.NewTask{Type: "T", Payload: map[string]int{"usr_id": 5}}
	putMany(t, tx, same, same)
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) VALUES ('T', '{"usr_id": 5}')`)
	exec(t, tx, `WITH u AS (INSERT INTO usr VALUES (5, 'a@example.com') RETURNING usr_id)
		INSERT INTO outbox.task (task_type, payload) SELECT 'T', jsonb_build_object('usr_id', usr_id) FROM u`)
	if got := scan[string](t, tx, `SELECT count(*) || ' of ' || count(DISTINCT to_jsonb(t) - 'task_id')
		FROM outbox.task t`); got != "5 of 1" {
		t.Errorf("got %s kind of tasks, want 5 of 1", got)
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
		putMany(t, tx, typed.New(1))
		putMany(t, tx, typed.New(2), typed.New(3))
		putMany(t, tx, typed.New(4, outbox.Unique("k")))
		if n := scan[int](t, tx, `SELECT count(*) FROM "`+name+`".task`); n != 4 {
			t.Errorf("got %d tasks in %s, want 4", n, name)
		}
		if n := scan[int](t, tx, `SELECT count(*) FROM outbox.task`); n != 0 {
			t.Errorf("got %d tasks in outbox, want 0", n)
		}
		stats, err := outbox.Stats(t.Context(), tx, outbox.Schema(name))
		if err != nil || len(stats) != 1 || stats[0].Ready != 4 {
			t.Errorf("got the counts %+v, %v; want 4 ready ones", stats, err)
		}
	}
}

// The wake-up and the keys are the business of triggers, with their owner's rights.
func TestAnEnqueuerNeedsOnlyToInsert(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	exec(t, d.db, `SELECT setval('outbox.wake', extract(epoch FROM now())::bigint + 3600)`)
	for about, c := range map[string]struct {
		grant     string
		enqueue   func(tx *sql.Tx) []outbox.Enqueued
		forbidden []string
	}{
		"tasks": {`GRANT INSERT, SELECT (task_id) ON outbox.task TO outbox_test_enqueuer`,
			func(tx *sql.Tx) []outbox.Enqueued {
				later := put(t, tx, "T", 1, outbox.After(time.Hour))
				return append(putMany(t, tx, outbox.NewTask{Type: "T"}, outbox.NewTask{Type: "T"}), later)
			}, []string{"SELECT payload FROM outbox.task", "DELETE FROM outbox.task", "UPDATE outbox.task SET " +
				"priority = 0",
				"SELECT * FROM outbox.dead_task",
				"SELECT last_value FROM outbox.wake", "SELECT outbox.task_wake()", "SELECT outbox.check_task(1)"}},
		"keyed tasks": {`GRANT INSERT, SELECT (task_id, outcome, position) ON outbox.keyed_task TO outbox_test_enqueuer`, func(tx *sql.Tx) []outbox.Enqueued {
			created := put(t, tx, "T", 1, outbox.UniquePayload())
			if again := put(t, tx, "T", 1, outbox.UniquePayload(),
				outbox.OnConflict(outbox.Replace)); again.Outcome != outbox.Updated {
				t.Errorf("got %v, want Updated", again)
			}
			return []outbox.Enqueued{created}
		}, []string{"SELECT * FROM outbox.unique_key", "SELECT outbox.lock_waiting(1)",
			"INSERT INTO outbox.task (task_type) VALUES ('T')"}},
	} {
		tx := begin(t, d.db)
		exec(t, tx, `CREATE ROLE outbox_test_enqueuer; GRANT USAGE ON SCHEMA outbox TO outbox_test_enqueuer; `+c.grant)
		exec(t, tx, `SET LOCAL ROLE outbox_test_enqueuer; SET LOCAL search_path = nowhere`)
		for _, got := range c.enqueue(tx) {
			if got.Outcome != outbox.Created {
				t.Errorf("%s: got %v, want Created", about, got)
			}
		}
		for _, forbidden := range c.forbidden {
			exec(t, tx, "SAVEPOINT s")
			if _, err := tx.Exec(forbidden); sqlState(err) != "42501" {
				t.Errorf("%s: %s: got %v, want insufficient_privilege (42501)", about, forbidden, err)
			}
			exec(t, tx, "ROLLBACK TO s")
		}
		end(t, tx.Rollback)
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
	dropped := outbox.NewTask{Type: "T", Options: []outbox.Option{outbox.Priority(1)}}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{dropped}); err == nil {
		t.Errorf("got %v, want an error for one task", got)
	}
	if got, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{{Type: "T"}, dropped}); err == nil {
		t.Errorf("got %v, want an error for two tasks", got)
	}
}
