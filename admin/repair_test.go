package admin_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
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
	db.Do(t, `INSERT INTO outbox.task (task_type, state, run_at, attempt, attempted_at)
		VALUES ('MAIL', 'scheduled', now() + interval '1 hour', 2, now());
		INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, 1, 'MAIL', 'ready') -- it came once`)
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
		fmt.Fprintln(&b, s.Type, s.Ready+s.Waiting, s.Scheduled, s.Leased, s.Dead, s.Finished, s.Failed)
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
	done, err := client(t, db, admin.Config{Actor: "ada", Tool: "test"}).Repair(t.Context(), admin.RepairOptions{})
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
			if err != nil || got.Outcome != outbox.OutcomeSkipped {
				t.Errorf("an Enqueue of %s with a key that is taken: %v, %v", taskType, got.Outcome, err)
			}
		}
		got, err := outbox.Enqueue(t.Context(), tx, "ORDERED", 0, outbox.OrderedBy("o"))
		if err != nil || got.ID <= above {
			t.Errorf("the id of a new task is %d, want more than %d; %v", got.ID, above, err)
		}
		return errors.New("rolled back")
	})
	if err == nil {
		t.Error("not rolled back")
	}
}

// Each kind of defect is found and repaired; conflicts are returned and left to a person.
func TestWhatARestoreLeavesIsFoundAndRepaired(t *testing.T) {
	t.Parallel()
	const task = `INSERT INTO outbox.task (task_type, unique_key, attempted_at, state) VALUES `
	for name, c := range map[string]struct {
		rows    string
		options admin.RepairOptions
		want    []string // the defects
		left    int      // the conflicts
		state   string   // unique keys, runs, requests to cancel, headless keys and the state of the type L after it
	}{
		"conflicts": {rows: task + `('A', 'twice', now(), 'scheduled'), ('A', 'twice', now(), 'scheduled'),
				('A', 'newer', now(), 'scheduled'), ('A', 'newer', NULL, 'scheduled');
			INSERT INTO outbox.dead_task
				(task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload)
				VALUES (1, now(), now(), 0, 1, 1, 'handler', 'A', '{}')`,
			options: admin.RepairOptions{Kinds: []admin.DefectKind{admin.DefectUniqueKeys, admin.DefectTaskIDs}},
			want: []string{"unique_key A: tasks without their key: 1 -> 0",
				"unique_key A: 2 -> 1 the tasks 1, 2 have one unique key",
				"task_id dead_task: 1 -> 0 the tasks 1 have the ids of dead letters"},
			left: 2, state: "newer4"},
		"leftovers of earlier tasks with the same ids": {rows: `
			INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('A', 'k', 1), ('A', 'gone', 99), ('A', 'w', 2);
			INSERT INTO outbox.running (task_id, token, relay_id, started_at)
				SELECT n, gen_random_uuid(), gen_random_uuid(), now() + (n - 1.5) * interval '1 hour' FROM generate_series(1, 2) n;
			INSERT INTO outbox.cancel (task_id, requested_at)
				VALUES (1, now() - interval '1 hour'), (2, now() + interval '1 s');
			INSERT INTO outbox.task (task_type) VALUES ('B');` +
			task + `('A', 'w', now(), 'scheduled'), ('A', 'gone', now(), 'scheduled');
			INSERT INTO outbox.task (task_type, state, relay_id, lease_token)
				VALUES ('L', 'leased', gen_random_uuid(), gen_random_uuid());
			INSERT INTO outbox.task (task_type, ordering_key, group_key) VALUES ('O', 'o', NULL), ('G', NULL, 'g');
			DELETE FROM outbox.headless_key; DELETE FROM outbox.place_request`,
			want: []string{"unique_key A: keys of other tasks: 1 -> 0", "unique_key A: tasks without their key: 1 -> 0",
				"leftover B: 2 -> 0", "lease L: 1 -> 0", "ordering_key O: 1 -> 0", "group_key G: 1 -> 0",
				"count A finished: -2 -> 0",
				"sequence task_task_id_seq: 6 -> 1000099"},
			state: "gone3,w2 2 2 o g free"},
		"a task that was created while the server's clock was ahead": {rows: `
			INSERT INTO outbox.task (task_type, created_at) VALUES ('A', now() + interval '1 day');
			INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1, gen_random_uuid(), gen_random_uuid());
			INSERT INTO outbox.cancel (task_id) VALUES (1)`, state: "1 1"},
		"an id of the old server": {options: admin.RepairOptions{Above: 815},
			want: []string{"sequence task_task_id_seq: 0 -> 1000815"}},
		"tasks that were counted twice": {rows: `INSERT INTO outbox.task (task_type) VALUES ('A');
			INSERT INTO outbox.counter_log (task_type, kind, tasks, arrived) VALUES ('A', 'ready', 1, 1)`,
			want: []string{"count A ready: 2 -> 1"}},
	} {
		db := relaytest.Open(t, relaytest.Migrated(t))
		db.Do(t, c.rows)
		done, err := client(t, db.DB).Repair(t.Context(), c.options)
		got := lines(done)
		if err != nil || strings.Count(got, "\n") != len(c.want) {
			t.Errorf("%s: %v, the defects are\n%s", name, err, got)
		}
		for _, part := range c.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: it lacks %q:\n%s", name, part, got)
			}
		}
		if f := found(t, db.DB, c.options); strings.Count(f, "\n") != c.left {
			t.Errorf("%s: left are\n%s", name, f)
		}
		state := db.Text(t, `SELECT concat_ws(' ',
			(SELECT string_agg(key || task_id, ',' ORDER BY key) FROM outbox.unique_key),
			(SELECT string_agg(task_id::text, ',') FROM outbox.running),
			(SELECT string_agg(task_id::text, ',') FROM outbox.cancel),
			(SELECT string_agg(ordering_key, ',') FROM outbox.headless_key),
			(SELECT string_agg(group_key, ',') FROM outbox.place_request),
			(SELECT CASE WHEN lease_token IS NULL THEN 'free' END FROM outbox.task WHERE task_type = 'L'))`)
		if state != c.state {
			t.Errorf("%s: left is %q, want %q", name, state, c.state)
		}
	}
	for _, bad := range []admin.RepairOptions{{Above: -1}, {Above: 1<<62 + 1}, {Kinds: []admin.DefectKind{"x"}}} {
		if _, err := unreachable(t).Repair(t.Context(), bad); !errors.Is(err, outbox.ErrInvalidOption) {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
	db := relaytest.Open(t, relaytest.Migrated(t))
	if n := db.Int(t, `SELECT count(*) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
		WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND attidentity <> ''`); n != 4 {
		t.Errorf("%d columns have a sequence: Repair must know all", n)
	}
}

// A repair beside an Enqueue that has a key locked gives up, and does no harm.
func TestARepairWaitsForNoApp(t *testing.T) {
	t.Parallel()
	db := relaytest.Open(t, relaytest.Migrated(t))
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, state) VALUES ('A', 'k', 'scheduled')`)
	release := db.Hold(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('A', 'k')`)
	_, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{})
	if err == nil || !strings.Contains(err.Error(), "repair unique_key") {
		t.Errorf("got %v", err)
	}
	release()
	repaired(t, db.DB)
	_, err = client(t, db.DB).In(nil).Repair(t.Context(), admin.RepairOptions{})
	if !errors.Is(err, outbox.ErrNoTransaction) {
		t.Errorf("in a transaction: got %v", err)
	}
}

// Beside relays and enqueues each look is at one snapshot, which contradicts nothing.
func TestAnOutboxAtWorkHasNoDefects(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	reg := handlers.New()
	sometimes := func(task *outbox.Task[int], err error) error {
		if task.Attempt == 1 && task.Payload%3 == 0 {
			return err
		}
		return nil
	}
	handlers.Tx(reg, outbox.NewTaskType[int]("ORDERED"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		return sometimes(task, handlers.RetryAfter(0, errors.New("once")))
	})
	handlers.Leased(reg, outbox.NewTaskType[int]("LEASED"), func(_ context.Context, task *outbox.Task[int]) error {
		return sometimes(task, handlers.Dead(errors.New("no")))
	})
	relaytest.Run(t, db.DB, reg, relay.Config{})
	for i := range 40 {
		enqueue(t, db, "ORDERED", i, outbox.OrderedBy("o"), outbox.Unique(fmt.Sprint(i%3)))
		enqueue(t, db, "LEASED", i, outbox.UniquePayload(outbox.UntilDone()))
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
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, ordering_key)
			SELECT $1, to_jsonb(n), 'k' || n, CASE $1 WHEN 'ORDERED' THEN 'o' || n % 10 END
			  FROM generate_series(1, 100) n`, taskType)
	}
	db.Do(t, `DELETE FROM outbox.counter_log; DELETE FROM outbox.unique_key WHERE task_type = 'KEYED';
		DELETE FROM outbox.headless_key`)
	reg := handlers.New()
	done := func(context.Context, *sql.Tx, *outbox.Task[int]) error { return nil }
	for _, name := range []string{"KEYED", "ORDERED"} {
		handlers.Tx(reg, outbox.NewTaskType[int](name), done)
	}
	relaytest.Run(t, db.DB, reg, relay.Config{})
	var repairs sync.WaitGroup
	for range 2 {
		repairs.Go(func() {
			if _, err := client(t, db.DB).Repair(t.Context(), admin.RepairOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 50 {
		enqueue(t, db, "KEYED", i, outbox.Unique(fmt.Sprint("k", i*2)), outbox.OrderedBy("o"))
	}
	repairs.Wait()
	db.Emptied(t, time.Minute)
	if f := found(t, db.DB, admin.RepairOptions{}); f != "" {
		t.Errorf("defects at the end\n%s", f)
	}
}

// program is the output of one of PostgreSQL's programs.
func program(t testing.TB, server *devpg.Server, stdin []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pgtest.Program(t, server, name), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.String())
	}
	return out
}

// restored is another database, with what pg_dump has of this one, as psql restores it: it goes on
// after errors.
func restored(t testing.TB, server *devpg.Server, of, into *database, args ...string) {
	t.Helper()
	dump := program(t, server, nil, "pg_dump", append(args, "--no-owner", "-d", of.URL)...)
	program(t, server, dump, "psql", "-q", "-o", "/dev/null", "-d", into.URL)
}

// A dump of the data alone is counted by the rows of the counters and by the triggers, and its
// unique keys collide with those of ready tasks. Of a part, other things are missing.
func TestARestoreOfTheDataAloneIsRepaired(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	src := relaytest.NewDatabase(t)
	lived(t, src)
	want := summary(t, src.DB)
	if f := found(t, src.DB, admin.RepairOptions{}); f != "" {
		t.Errorf("defects before:\n%s", f)
	}
	parts := [][]string{{"--data-only"}}
	if needs.InCI() {
		parts = append(parts, []string{"--data-only", "-t", "outbox.task", "-t", "outbox.dead_task"},
			[]string{"--data-only", "-T", "outbox.task"},
			[]string{"--data-only", "-T", "outbox.unique_key", "-T", "outbox.headless_key"})
	}
	for i, args := range parts {
		dst := relaytest.Direct(t, relaytest.Migrated(t), "postgres")
		restored(t, server, src, dst, args...)
		done := repaired(t, dst.DB)
		if done == "" {
			t.Errorf("%s did no harm, so the test shows nothing", args)
		}
		if i == 0 {
			for _, part := range []string{
				"count MAIL retrying: 2 -> 1", "count MAIL dead: 4 -> 2", "count MAIL finished: ",
				"unique_key REPORT: tasks without their key: 2 -> 0",
			} {
				if !strings.Contains(done, part) {
					t.Errorf("the defects lack %q:\n%s", part, done)
				}
			}
			if got := summary(t, dst.DB); got != want {
				t.Errorf("the counts are\n%swant\n%s", got, want)
			}
		}
		if i != 2 {
			behaves(t, dst, int64(src.Int(t, `SELECT max(task_id) FROM outbox.task`)))
		}
		dst.Invariants(t)
	}
	// A whole dump brings all that belongs together.
	dst := relaytest.Direct(t, pgtest.Database(t), "postgres")
	restored(t, server, src, dst)
	if f := found(t, dst.DB, admin.RepairOptions{}); f != "" || summary(t, dst.DB) != want {
		t.Errorf("the defects are\n%s", f)
	}
}

// Logical replication brings the rows, and no sequence.
func TestASwitchOverByLogicalReplicationIsRepaired(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, map[string]string{"wal_level": "logical"})
	src := relaytest.Direct(t, server.URL(), "postgres")
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	src.Do(t, `CREATE DATABASE replica`)
	address := strings.Replace(server.URL(), "/postgres?", "/replica?", 1)
	dst := relaytest.Direct(t, address, "postgres")
	restored(t, server, src, dst, "--schema-only")
	src.Do(t, `CREATE PUBLICATION all_tables FOR ALL TABLES`)
	// Within one cluster CREATE SUBSCRIPTION would wait for itself.
	src.Do(t, `SELECT pg_create_logical_replication_slot('to_replica', 'pgoutput')`)
	dst.Do(t, fmt.Sprintf(`CREATE SUBSCRIPTION from_primary CONNECTION '%s' PUBLICATION all_tables
		WITH (create_slot = false, slot_name = 'to_replica')`, src.URL))
	lived(t, src)
	for i := range 100 {
		enqueue(t, src, "SENT", i)
	}
	src.Do(t, `DELETE FROM outbox.task WHERE task_type = 'SENT'`) // as if done
	src.Do(t, `DELETE FROM outbox.dead_task`)
	last := int64(src.Int(t, `SELECT max(task_id) FROM outbox.task`) + 100)
	want := summary(t, src.DB)
	relaytest.Eventually(t, time.Minute, "the replica has all rows", func() bool {
		notReady := dst.Int(t, `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`)
		return notReady == 0 && summary(t, dst.DB) == want
	})
	dst.Do(t, `ALTER SUBSCRIPTION from_primary DISABLE; ALTER SUBSCRIPTION from_primary SET (slot_name = NONE);
		DROP SUBSCRIPTION from_primary`)

	if f := found(t, dst.DB, admin.RepairOptions{}); !strings.Contains(f, "sequence task_task_id_seq: 0 -> ") {
		t.Errorf("the defects are\n%s", f)
	}
	repaired(t, dst.DB)
	if o, err := client(t, dst.DB).Origin(t.Context()); err != nil || !o.Copy {
		t.Errorf("a replica is no copy: %+v, %v", o, err)
	}
	adopted, err := client(t, dst.DB).Adopt(t.Context(), admin.AdoptOptions{KeepID: true})
	if err != nil || adopted.DatabaseID != src.Text(t, `SELECT database_id FROM outbox.identity`) {
		t.Errorf("adopted with its id: %+v, %v", adopted, err)
	}
	if got := summary(t, dst.DB); got != want {
		t.Errorf("the counts are\n%swant\n%s", got, want)
	}
	behaves(t, dst, last)
}
