package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A time.Duration ends at 292 years: the wait for this task does not fit one.
func TestATaskOfTheYear9999WaitsAndHindersNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', '9999-12-31')`)
	db.Enqueue(t, "TX", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := relay.New(db.DB, all(), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RunOnce(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("RunOnce: %v, %v; want it to end by itself", err, ctx.Err())
	}
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled'`); n != 1 {
		t.Errorf("%d tasks are scheduled, want 1", n)
	}
}

func TestTimesThatARelayCouldNotReadAreRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, column := range []string{"run_at", "created_at", "attempted_at"} {
		for _, value := range []string{"infinity", "-infinity", "294276-12-01"} {
			_, err := db.ExecContext(t.Context(), `INSERT INTO outbox.task (task_type, `+column+`) VALUES ('TX', $1)`, value)
			if err == nil || !strings.Contains(err.Error(), "task_time_check") {
				t.Errorf("%s = %s: %v, want it refused by task_time_check", column, value, err)
			}
		}
	}
}

func TestATypeWhoseClaimsAreRefusedDoesNotStopOthers(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$`)
	db.Do(t, `CREATE TRIGGER keep BEFORE DELETE ON outbox.task FOR EACH ROW WHEN (OLD.task_type = 'TX') EXECUTE FUNCTION keep()`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, priority) VALUES ('TX', '{}', -5)`)
	r := run(t, db, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "the refusal is logged", func() bool { return r.Log.Count("cannot be claimed") > 0 })
	for range 20 {
		db.Enqueue(t, "BATCH", 1)
		eventually(t, time.Second, "the other type's task is done", func() bool {
			return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'BATCH'`) == 0
		})
	}
	if n := r.Log.Count("cannot be claimed"); n != 1 {
		t.Errorf("the refusal was logged %d times, want once", n)
	}
	if n := r.Log.Count("cannot be worked with"); n != 0 {
		t.Errorf("the refusal was taken for an outage %d times", n)
	}
	db.Do(t, `DROP TRIGGER keep ON outbox.task`)
	db.Emptied(t, 10*time.Second)
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
		// A batch with a task that has no attempt left is given back, and its row in the journal is to go.
		"DELETE": {`'BATCH', CASE n WHEN 1000 THEN 10 ELSE 0 END`, 1},
	} {
		tests[refused] = func(t *testing.T) {
			db := newDatabase(t)
			reg := all()
			handlers.Tx(reg, outbox.NewTaskType[payload]("OTHER"), txEffect)
			db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$`)
			db.Do(t, `CREATE TRIGGER keep BEFORE `+refused+` ON outbox.running FOR EACH ROW
				WHEN (`+map[string]string{"INSERT": "NEW", "DELETE": "OLD"}[refused]+`.task_id >= 1000) EXECUTE FUNCTION keep()`)
			r := run(t, db, reg, relay.Config{Workers: 10, PollInterval: 50 * time.Millisecond})
			claimed := func(first bool) {
				eventually(t, 20*time.Second, "all tasks are claimed", func() bool {
					return db.Int(t, `SELECT count(*) FROM (SELECT 1 FROM outbox.task FOR UPDATE SKIP LOCKED) t`) == 0 &&
						(!first || db.Int(t, `SELECT count(*) FROM pg_locks
							WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'outbox.running'::regclass AND NOT granted`) > 0)
				})
			}
			gate := newActor(t, db)
			if _, err := gate.exec(`BEGIN; LOCK TABLE outbox.running IN EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			db.Enqueue(t, "OTHER", 1)
			claimed(true)
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type, attempt) OVERRIDING SYSTEM VALUE SELECT n, `+c.tasks+` FROM generate_series(1000, 1002) n`)
			db.Enqueue(t, "OTHER", 1)
			claimed(false)
			if _, err := gate.exec(`COMMIT`); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "the refusal is logged", func() bool { return r.Log.Count("cannot be claimed") > 0 })
			for range 20 {
				db.Enqueue(t, "OTHER", 1)
				eventually(t, 20*time.Second, "the other type's tasks are done", func() bool {
					return db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = 'OTHER'`) == 0
				})
			}
			if all, other := r.Log.Count("cannot be claimed"), r.Log.Count("task_type=OTHER"); all != 1 || other != 0 {
				t.Errorf("%d refusals were logged, want one; %d were of the other type", all, other)
			}
			if n := r.Log.Count(outageBegins); n != 0 {
				t.Errorf("the refusal was taken for an outage %d times", n)
			}
			db.Do(t, `DROP TRIGGER keep ON outbox.running`)
			db.Emptied(t, 20*time.Second)
			done := db.Int(t, `SELECT count(*) FROM effect WHERE task_id >= 1000 AND attempt = 1`)
			if died := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); done != 3-c.died || died != c.died {
				t.Errorf("%d tasks were done in their first attempt and %d died, want %d and %d\n%s", done, died, 3-c.died, c.died, db.Dump(t))
			}
		}
	}
	relaytest.Together(t, tests)
}

func TestANoteThatPostgreSQLRefusesHoldsUpItsTaskOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, $1, $2 FROM generate_series(1, 3) n`, someToken, liveRelay)
	db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$`)
	db.Do(t, `CREATE TRIGGER keep BEFORE DELETE ON outbox.running FOR EACH ROW WHEN (OLD.task_id = 1) EXECUTE FUNCTION keep()`)
	r, err := relay.New(db.DB, all(), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoops(r, "")
	defer l.Close()
	l.Note(1, 3, someToken)
	l.Note(2, 3, someToken)
	if err := l.WriteNotes(t.Context()); err == nil || !strings.Contains(err.Error(), "kept") {
		t.Errorf("notes: %v, want what PostgreSQL said", err)
	}
	const left = `SELECT string_agg(task_id || CASE WHEN lost_connection THEN ' lost' ELSE '' END, ', ' ORDER BY task_id) FROM outbox.running`
	if got := db.Text(t, left); got != "1, 3 lost" {
		t.Errorf("rows of the journal: %s; want 1, 3 lost", got)
	}
	if err := l.Record(t.Context(), 1); err == nil {
		t.Error("a run is journalled of the task whose note is not written")
	}
	if err := l.Record(t.Context(), 4); err != nil {
		t.Errorf("another task's run: %v", err)
	}
	db.Do(t, `DROP TRIGGER keep ON outbox.running`)
	if err := l.WriteNotes(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Record(t.Context(), 1); err != nil {
		t.Errorf("its run when the note is written: %v", err)
	}
	db.Do(t, `DELETE FROM outbox.running`)
}

func TestRetryAfterOfABatchHoldsForEachOfItsTasks(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int32
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error {
		calls.Add(1)
		return handlers.RetryAfter(time.Hour, errors.New("429"))
	})
	db.Enqueue(t, "BATCH", 4)
	once(t, db, reg, relay.Config{Workers: 1}) // two workers share the tasks where both claim at once
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls, want 1: the receiver asked for an hour's rest", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'scheduled' AND attempt = 1 AND run_at > now() + interval '59 minutes'`); n != 4 {
		t.Errorf("%d tasks wait for an hour, want 4\n%s", n, db.Dump(t))
	}
}
