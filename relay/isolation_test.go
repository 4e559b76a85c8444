package relay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// keep has a trigger refuse rows with an error that says that they were kept.
func (db *database) keep(t *testing.T, event, when string) {
	t.Helper()
	db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$;
		CREATE TRIGGER keep `+event+` FOR EACH ROW WHEN (`+when+`) EXECUTE FUNCTION keep()`)
}

// A time.Duration ends at 292 years: the wait for this task does not fit one.
func TestATaskOfTheYear9999WaitsAndHindersNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', '9999-12-31')`)
	db.Enqueue(t, "TX", 1)
	once(t, db, all(), relay.Config{})
	db.wantRows(t, 1, `effect`)
	db.wantRows(t, 1, `outbox.task WHERE state = 'scheduled'`)
}

// doneOf waits until no task of the type is left.
func (db *database) doneOf(t *testing.T, taskType string) {
	t.Helper()
	db.becomes(t, 20*time.Second, 0, "the other type's tasks are done", `SELECT count(*) FROM outbox.task
		WHERE task_type = $1`, taskType)
}

// A poll promotes tasks of all types. What is ready runs, of this type as well.
func TestATypeWhoseTasksCannotBePromotedDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for state, c := range map[string]struct {
		insert, log string
		health      error
	}{
		"scheduled": {`(task_type, state) VALUES ('TX', 'scheduled')`,
			"level=ERROR msg=\"outbox: scheduled tasks of this type cannot be promoted\" task_type=TX", relay.ErrTypeFails},
		"waiting": {`(task_type, ordering_key) VALUES ('TX', 'k')`,
			"level=ERROR msg=\"outbox: tasks with ordering keys cannot be promoted\"", relay.ErrOrderingFails},
	} {
		tests[state] = func(t *testing.T) {
			db := newDatabase(t)
			db.keep(t, `BEFORE UPDATE ON outbox.task`, `OLD.state = '`+state+`'`)
			db.Do(t, `INSERT INTO outbox.task `+c.insert)
			r := run(t, db, all(), relay.Config{PollInterval: 50 * time.Millisecond})
			eventually(t, 20*time.Second, "Health says so", func() bool { return errors.Is(r.Health(), c.health) })
			if text := r.Health().Error(); !strings.Contains(text, "SQLSTATE P0001") {
				t.Errorf("Health: %s; want the SQLSTATE", text)
			}
			for range 5 {
				db.Enqueue(t, "TX", 1)
				db.Enqueue(t, "BATCH", 1)
				db.becomes(t, 20*time.Second, 1, "ready tasks are done", `SELECT count(*) FROM outbox.task`)
			}
			r.Log.Want(t, 1, c.log)
			r.Log.Want(t, 0, outageBegins)
			db.Do(t, `DROP TRIGGER keep ON outbox.task`)
			db.Emptied(t, 20*time.Second)
			eventually(t, 20*time.Second, "Health is well again", func() bool { return r.Health() == nil })
		}
	}
	relaytest.Together(t, tests)
}

// The journal writes the runs of several types in one statement.
func TestATypeWhoseRunsCannotBeJournalledDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for refused, c := range map[string]struct {
		tasks string // whose ids are from 1000 on
		died  int
	}{
		"INSERT": {`'TX', 0`, 0},
		// A batch with a task that has no attempt left is given back, and its row in the journal is
		// to go.
		"DELETE": {`'BATCH', CASE n WHEN 1000 THEN 20 ELSE 0 END`, 1},
	} {
		tests[refused] = func(t *testing.T) {
			db := newDatabase(t)
			reg := all()
			registerTx(reg, outbox.NewTaskType[payload]("OTHER"), txEffect)
			db.keep(t, `BEFORE `+refused+` ON outbox.running`,
				map[string]string{"INSERT": "NEW", "DELETE": "OLD"}[refused]+`.task_id >= 1000`)
			r := run(t, db, reg, relay.Config{Workers: 10, PollInterval: 50 * time.Millisecond})
			claimed := func() {
				eventually(t, 20*time.Second, "all tasks are claimed, and the journal waits", func() bool {
					return db.Int(t, `SELECT count(*) FROM (SELECT 1 FROM outbox.task FOR UPDATE SKIP LOCKED) t`) == 0 &&
						db.Int(t, `SELECT count(*) FROM pg_locks
						WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
						AND relation = 'outbox.running'::regclass AND NOT granted`) > 0
				})
			}
			gate := newActor(t, db)
			if _, err := gate.exec(`BEGIN; LOCK TABLE outbox.running IN EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			db.Enqueue(t, "OTHER", 1)
			claimed()
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type, attempt) OVERRIDING SYSTEM VALUE
				SELECT n, `+c.tasks+` FROM generate_series(1000, 1002) n`)
			db.Enqueue(t, "OTHER", 1)
			claimed()
			if _, err := gate.exec(`COMMIT`); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "the refusal is logged", func() bool { return r.Log.Count("cannot be claimed") > 0 })
			for range 20 {
				db.Enqueue(t, "OTHER", 1)
				db.doneOf(t, "OTHER")
			}
			if all, other := r.Log.Count("cannot be claimed"), r.Log.Count("task_type=OTHER"); all != 1 || other != 0 {
				t.Errorf("%d refusals were logged, want one; %d were of the other type", all, other)
			}
			r.Log.Want(t, 0, outageBegins)
			db.Do(t, `DROP TRIGGER keep ON outbox.running`)
			db.Emptied(t, 20*time.Second)
			done := db.Int(t, `SELECT count(*) FROM effect WHERE task_id >= 1000 AND attempt = 1`)
			if died := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); done != 3-c.died || died != c.died {
				t.Errorf("%d tasks were done in their first attempt and %d died, want %d and %d\n%s", done, died, 3-c.died, c.died,
					db.Dump(t))
			}
		}
	}
	relaytest.Together(t, tests)
}

func TestANoteThatPostgreSQLRefusesHoldsUpItsTaskOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, $1, $2 FROM generate_series(1, 3) n`,
		someToken, liveRelay)
	db.keep(t, `BEFORE DELETE ON outbox.running`, `OLD.task_id = 1`)
	l := newLoops(resting(t, db, all(), &records{}), "")
	defer l.Close()
	l.Note(1, 3, someToken)
	l.Note(2, 3, someToken)
	if err := l.Journal.WriteNotes(t.Context(), true); err == nil || !strings.Contains(err.Error(), "kept") {
		t.Errorf("notes: %v, want what PostgreSQL said", err)
	}
	db.wantText(t, "1, 3 lost", `SELECT string_agg(task_id || CASE WHEN lost_connection THEN ' lost' ELSE '' END, ', '
		ORDER BY task_id) FROM outbox.running`)
	if err := l.Record(t.Context(), 1); err == nil {
		t.Error("a run is journalled of the task whose note is not written")
	}
	if err := l.Record(t.Context(), 4); err != nil {
		t.Errorf("another task's run: %v", err)
	}
	db.Do(t, `DROP TRIGGER keep ON outbox.running`)
	if err := l.Journal.WriteNotes(t.Context(), true); err != nil {
		t.Error(err)
	}
	if err := l.Record(t.Context(), 1); err != nil {
		t.Errorf("its run when the note is written: %v", err)
	}
	db.Do(t, `DELETE FROM outbox.running`)
}
