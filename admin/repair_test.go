package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// lived fills a database: tasks in each state, with keys, two dead letters, and finished ones.
func lived(t *testing.T, db *database) {
	t.Helper()
	db.Enqueue(t, "MAIL", 3)
	db.Enqueue(t, "OLD", 60)
	db.Do(t, `DELETE FROM outbox.task WHERE task_type = 'OLD'`) // as if done
	for i := range 2 {
		enqueue(t, db, "REPORT", i, outbox.Unique(fmt.Sprint("k", i)), outbox.After(time.Hour))
		enqueue(t, db, "MAIL", i, outbox.Unique(fmt.Sprint("k", i)))
		enqueue(t, db, "ORDERED", i, outbox.OrderedBy("o"))
	}
	db.Do(t, `INSERT INTO outbox.task (task_type, state, run_at, attempt, attempted_at) VALUES ('MAIL', 'scheduled', now() + interval '1 hour', 2, now())`)
	db.Do(t, `INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, 1, 'MAIL', 'ready')`) // it came once
	bury(t, db, "MAIL", "handler", "no", 10, 2, 5)
}

// summary is what Stats says, without ages.
func summary(t testing.TB, db *sql.DB) string {
	t.Helper()
	stats, err := outbox.Stats(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, s := range stats {
		fmt.Fprintf(&b, "%s %d %d %d %d %d %d\n", s.Type, s.Ready+s.Waiting, s.Scheduled, s.Leased, s.Dead, s.Finished, s.Failed)
	}
	return b.String()
}

// found are the defects, a line each.
func found(t testing.TB, db *sql.DB, o admin.RepairOptions) string {
	t.Helper()
	defects, err := client(t, db).Defects(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return lines(defects)
}

func lines(defects []admin.Defect) string {
	var b strings.Builder
	for _, d := range defects {
		fmt.Fprintf(&b, "%s %s: %d -> %d %s\n", d.Kind, d.Subject, d.Is, d.ShouldBe, d.Conflict)
	}
	return b.String()
}

// repaired repairs, and fails unless nothing is found then.
func repaired(t testing.TB, db *sql.DB) string {
	t.Helper()
	done, err := client(t, db, admin.Options{Actor: "ada", Tool: "test"}).Repair(t.Context(), admin.RepairOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again := found(t, db, admin.RepairOptions{}); again != "" {
		t.Errorf("a repair of\n%sleaves\n%s", lines(done), again)
	}
	return lines(done)
}

// behaves fails unless unique keys are taken, ids new and all ordering keys have a head or ask for
// one.
func behaves(t *testing.T, db *database, above int64) {
	t.Helper()
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		for _, taskType := range []string{"REPORT", "MAIL"} {
			got, err := outbox.Enqueue(t.Context(), tx, taskType, 0, outbox.Unique("k1"))
			if err != nil || got.Outcome != outbox.Skipped {
				t.Errorf("an Enqueue of %s with a key that is taken: %v, %v", taskType, got.Outcome, err)
			}
		}
		got, err := outbox.Enqueue(t.Context(), tx, "ORDERED", 0, outbox.OrderedBy("o"))
		if err != nil || got.TaskID <= above {
			t.Errorf("the id of a new task is %d, want more than %d; %v", got.TaskID, above, err)
		}
		return errors.New("rolled back")
	})
	if err == nil {
		t.Error("not rolled back")
	}
}

// Conflicts are returned and left to a person; the other defects are repaired.
func TestConflictsAreTold(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	for range 3 {
		db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, attempted_at, state) VALUES ('A', 'twice', now(), 'scheduled')`)
	}
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, attempted_at, state) VALUES ('A', 'newer', now(), 'scheduled'), ('A', 'newer', NULL, 'scheduled')`)
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload) VALUES (1, now(), now(), 0, 1, 1, 'handler', 'A', '{}')`)
	done, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"unique_key A: 3 -> 1 the tasks 1, 2, 3 have one unique key", "task_id dead_task: 1 -> 0 the tasks 1 have the ids of dead letters"} {
		if !strings.Contains(lines(done), part) {
			t.Errorf("it lacks %q:\n%s", part, lines(done))
		}
	}
	if got := db.Text(t, `SELECT string_agg(key || task_id, ', ') FROM outbox.unique_key`); got != "newer5" {
		t.Errorf("the keys are %q", got)
	}
	if f := found(t, db.DB, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectUniqueKeys, admin.DefectTaskIDs}}); strings.Count(f, "\n") != 2 {
		t.Errorf("left are\n%s", f)
	}
}

// Ids that were given twice leave keys, runs and requests to cancel of the earlier tasks.
func TestWhatIsLeftOfEarlierTasksIsRemoved(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('A', 'k', 1), ('A', 'gone', 99), ('A', 'w', 2);
		INSERT INTO outbox.running (task_id, token, relay_id, started_at) VALUES (1, gen_random_uuid(), gen_random_uuid(), now() - interval '1 hour'), (2, gen_random_uuid(), gen_random_uuid(), now() + interval '1 s');
		INSERT INTO outbox.cancel (task_id, requested_at) VALUES (1, now() - interval '1 hour'), (2, now() + interval '1 s');
		INSERT INTO outbox.task (task_type) VALUES ('B');
		INSERT INTO outbox.task (task_type, unique_key, attempted_at, state) VALUES ('A', 'w', now(), 'scheduled');
		INSERT INTO outbox.task (task_type, unique_key, attempted_at, state) VALUES ('A', 'gone', now(), 'scheduled');
		INSERT INTO outbox.task (task_type, state, relay_id, lease_token) VALUES ('L', 'leased', gen_random_uuid(), gen_random_uuid());
		INSERT INTO outbox.task (task_type, ordering_key) VALUES ('O', 'o');
		DELETE FROM outbox.headless_key`)
	done := repaired(t, db.DB)
	for _, part := range []string{"unique_key A: keys of other tasks: 1 -> 0", "unique_key A: tasks without their key: 1 -> 0", "leftover B: 2 -> 0", "lease L: 1 -> 0", "ordering_key O: 1 -> 0"} {
		if !strings.Contains(done, part) {
			t.Errorf("it lacks %q:\n%s", part, done)
		}
	}
	got := db.Text(t, `SELECT concat_ws(' ', (SELECT string_agg(key || task_id, ',' ORDER BY key) FROM outbox.unique_key), (SELECT string_agg(task_id::text, ',') FROM outbox.running),
		(SELECT string_agg(task_id::text, ',') FROM outbox.cancel), (SELECT string_agg(ordering_key, ',') FROM outbox.headless_key), (SELECT state FROM outbox.task WHERE task_type = 'L'))`)
	if got != "gone3,w2 2 2 o ready" {
		t.Errorf("left is %q", got)
	}
}

// The time of a task that was created while the server's clock was ahead says nothing.
func TestAClockThatWasAheadMakesNoLeftovers(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, created_at) VALUES ('A', now() + interval '1 day');
		INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1, gen_random_uuid(), gen_random_uuid());
		INSERT INTO outbox.cancel (task_id) VALUES (1)`)
	if f := found(t, db.DB, admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectLeftovers}}); f != "" {
		t.Errorf("the defects are\n%s", f)
	}
}

// The ids of tasks go on above the last one of the old server.
func TestARepairGoesOnAboveAnID(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	if f := found(t, db.DB, admin.RepairOptions{Above: 815}); f != "sequence task_task_id_seq: 0 -> 1000815 \n" {
		t.Errorf("the defects are %q", f)
	}
	if _, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{Above: 815}); err != nil {
		t.Fatal(err)
	}
	if id := enqueue(t, db, "A", 1); id <= 815 {
		t.Errorf("the next id is %d", id)
	}
	for _, bad := range []admin.RepairOptions{{Above: -1}, {Above: 1<<62 + 1}, {Kinds: []admin.DefectKind{"x"}}} {
		if _, err := unreachable(t).Repair(t.Context(), bad); !errors.Is(err, outbox.ErrInvalidOption) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r') AND attidentity <> ''`); n != 4 {
		t.Errorf("%d columns have a sequence: Repair must know all", n)
	}
}

// As a restore with the sequences does whose rows the triggers counted again.
func TestTasksThatWereCountedTwiceRaiseNoID(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Enqueue(t, "A", 3)
	db.Do(t, `INSERT INTO outbox.counter_log (task_type, kind, tasks, arrived) VALUES ('A', 'ready', 3, 3)`)
	if f := found(t, db.DB, admin.RepairOptions{}); f != "count A ready: 6 -> 3 \n" {
		t.Errorf("the defects are %q", f)
	}
}

// A repair beside an Enqueue that has a key locked gives up, and does no harm.
func TestARepairWaitsForNoApp(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, state) VALUES ('A', 'k', 'scheduled')`)
	release := db.Hold(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('A', 'k')`)
	if _, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{}); err == nil || !strings.Contains(err.Error(), "repair unique_key") {
		t.Errorf("got %v", err)
	}
	release()
	repaired(t, db.DB)
	if _, err := client(t, db.DB).In(nil).Repair(t.Context(), admin.RepairOptions{}); !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("in a transaction: got %v", err)
	}
}

// Beside relays and enqueues each look is at one snapshot, which contradicts nothing.
func TestAnOutboxAtWorkHasNoDefects(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[int]("KEYED"), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
	handlers.Tx(reg, outbox.NewTaskType[int]("ORDERED"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		if task.Attempt == 1 && task.Payload%3 == 0 {
			return handlers.RetryAfter(0, errors.New("once"))
		}
		return nil
	})
	handlers.Leased(reg, outbox.NewTaskType[int]("LEASED"), func(_ context.Context, task *outbox.Task[int]) error {
		if task.Payload%3 == 0 {
			return handlers.Dead(errors.New("no"))
		}
		return nil
	})
	relaytest.Run(t, db.DB, reg, relay.Config{})
	for i := range 40 {
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, []outbox.NewTask{
				{Type: "KEYED", Payload: i, Options: []outbox.Option{outbox.Unique(fmt.Sprint(i % 3))}},
				{Type: "ORDERED", Payload: i, Options: []outbox.Option{outbox.OrderedBy("o")}},
				{Type: "LEASED", Payload: i, Options: []outbox.Option{outbox.UniquePayload(outbox.UntilDone())}},
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if f := found(t, db.DB, admin.RepairOptions{}); f != "" {
			t.Errorf("after %d: defects\n%s", i, f)
		}
	}
	db.Emptied(t, time.Minute)
	if f := found(t, db.DB, admin.RepairOptions{}); f != "" {
		t.Errorf("at the end: defects\n%s", f)
	}
}

// Relays, enqueues and several repairs go on beside each other.
func TestARepairBesideWorkIsRight(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	for _, taskType := range []string{"KEYED", "ORDERED"} {
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, ordering_key) SELECT $1, to_jsonb(n), 'k' || n, CASE $1 WHEN 'ORDERED' THEN 'o' || n % 10 END FROM generate_series(1, 100) n`, taskType)
	}
	db.Do(t, `DELETE FROM outbox.counter_log; DELETE FROM outbox.unique_key WHERE task_type = 'KEYED'; DELETE FROM outbox.headless_key`)
	reg := handlers.New()
	for _, name := range []string{"KEYED", "ORDERED"} {
		handlers.Tx(reg, outbox.NewTaskType[int](name), func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil })
	}
	relaytest.Run(t, db.DB, reg, relay.Config{})
	errs := make(chan error, 3)
	for range 2 {
		go func() {
			_, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{})
			errs <- err
		}()
	}
	go func() {
		var err error
		for i := range 50 {
			err = errors.Join(err, outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(t.Context(), tx, "KEYED", i, outbox.Unique(fmt.Sprint("k", i*2)), outbox.OrderedBy("o"))
				return err
			}))
		}
		errs <- err
	}()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	db.Emptied(t, time.Minute)
	if f := found(t, db.DB, admin.RepairOptions{}); f != "" {
		t.Errorf("defects at the end\n%s", f)
	}
}
