package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// tooMany has claims of more than limit tasks of the type IT fail with a SQLSTATE: each of them, or
// every second one. With 57014 they take too long, as those of large tasks do on a slow network.
func (db *database) tooMany(t *testing.T, limit, every int, code string) {
	t.Helper()
	db.Do(t, `CREATE SEQUENCE too_many`) // which no rollback sets back
	db.Do(t, strings.NewReplacer("$limit", strconv.Itoa(limit), "$every", strconv.Itoa(every),
		"$code", code).Replace(`
		CREATE FUNCTION too_many() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM claimed WHERE task_type = 'IT' AND state = 'ready') > $limit
		    AND nextval('too_many') % $every = 0 THEN
		    RAISE EXCEPTION 'too slow' USING ERRCODE = '$code';
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER too_many_updated AFTER UPDATE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
		EXECUTE FUNCTION too_many();
		CREATE TRIGGER too_many_deleted AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS claimed FOR EACH STATEMENT
		EXECUTE FUNCTION too_many()`))
}

// unhealthy waits until Health says why a relay is not healthy, with all of the texts.
func unhealthy(t *testing.T, r *running, want error, texts ...string) {
	t.Helper()
	eventually(t, 30*time.Second, "Health names it", func() bool { return errors.Is(r.Health(), want) })
	said := r.Health().Error()
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("Health: %s; want %s in it", said, text)
		}
	}
}

// heals ends what made a type fail: all tasks are done, and the relay is healthy.
func (db *database) heals(t *testing.T, r *running, statement string) {
	t.Helper()
	db.Do(t, statement)
	db.Emptied(t, 20*time.Second)
	eventually(t, 20*time.Second, "it is healthy again", func() bool { return r.Health() == nil })
}

// A claim that takes too long is not repeated as it was, and its lane remembers that.
func TestAClaimOfManyThatTimesOutIsMadeSmaller(t *testing.T) {
	t.Parallel()
	ways := map[string]string{"batch": "batch", "leased": "leased", "RunOnce": "leased"}
	together(t, ways, func(t *testing.T, name, kind string) {
		db, reg, log := newDatabase(t), handlers.New(), ""
		db.tooMany(t, 4, 1, "57014")
		db.Enqueue(t, "IT", 100)
		relaytest.Register(reg, kind, "IT", 32, doNothing)
		if name == "RunOnce" {
			log = once(t, db, reg, relay.Config{Workers: 12})
			db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
		} else {
			r := run(t, db, reg, relay.Config{Workers: 12, PollInterval: 50 * time.Millisecond})
			db.Emptied(t, 20*time.Second)
			log = r.Log.String()
		}
		noOutage(t, log)
		if n := db.Int(t, `SELECT last_value FROM too_many`); n < 2 {
			t.Errorf("%d claims were too large, want more", n)
		}
	})
}

// A relay with many workers does not ask for hundreds of large tasks at once: over a slow network none
// of them would begin before all have arrived.
func TestAClaimOfLargeLeasedTasksTakesFew(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	db.tooMany(t, 100, 1, "57014")
	db.Do(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'IT', jsonb_build_object('n', n, 'large', repeat('x', 100 << 10)) FROM generate_series(1, 300) n`)
	relaytest.Register(reg, "leased", "IT", 1, doNothing)
	run(t, db, reg, relay.Config{Workers: 400, PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 30*time.Second)
	if n := db.Int(t, `SELECT count(*) FROM pg_sequences WHERE sequencename = 'too_many' AND last_value IS NOT NULL`); n > 0 {
		t.Error("a claim took more than 100 tasks of 100 KiB")
	}
}

// Other types that work say nothing about the one that fails: it is named, in the log once a minute
// and in Health for as long as it fails. A type that fails every second time never fails three
// times in a row, and is named all the same.
func TestATypeWhoseClaimsFailIsNamedWhileOthersGoOn(t *testing.T) {
	t.Parallel()
	type failure struct {
		code, kind string
		every      int
	}
	tests := map[string]func(*testing.T){}
	for _, c := range []failure{{"57014", "tx", 1}, {"40001", "batch", 1}, {"08006", "tx", 1},
		{"57P03", "leased", 1}, {"53200", "leased", 1}, {"25006", "batch", 1}, {"XX000", "leased", 1},
		{"57014", "tx", 2}, {"57014", "leased", 2}} {
		tests[fmt.Sprint(c.code, " ", c.kind, " ", c.every)] = func(t *testing.T) {
			db, reg := newDatabase(t), handlers.New()
			db.tooMany(t, 0, c.every, c.code)
			workers := map[int]int{1: 4, 2: 1}[c.every]
			relaytest.Register(reg, c.kind, "IT", workers, doNothing)
			relaytest.Register(reg, c.kind, "OTHER", 4, doNothing)
			db.Enqueue(t, "IT", 100)
			r := run(t, db, reg, relay.Config{Workers: workers, PollInterval: 50 * time.Millisecond})
			others := func(n int) {
				for range n {
					db.Enqueue(t, "OTHER", 1)
					db.doneOf(t, "OTHER")
				}
			}
			eventually(t, 20*time.Second, "Health names the type", func() bool {
				db.Enqueue(t, "IT", 1)
				others(1)
				return errors.Is(r.Health(), relay.ErrTypeFails)
			})
			unhealthy(t, r, relay.ErrTypeFails, "IT", c.code)
			if said := fmt.Sprint(r.Health()); strings.Contains(said, "too slow") {
				t.Errorf("Health has PostgreSQL's words: %s", said)
			}
			others(5)
			r.Log.Want(t, 1, "cannot be claimed")
			level := "level=WARN"
			if c.code == "XX000" {
				level = "level=ERROR"
			}
			for _, want := range []string{level, "task_type=IT", "too slow", "failures="} {
				if !strings.Contains(r.Log.String(), want) {
					t.Errorf("the log lacks %q", want)
				}
			}
			noOutage(t, r.Log.String())
			db.Do(t, `DROP FUNCTION too_many CASCADE`)
			eventually(t, 30*time.Second, "it is healthy again", func() bool {
				db.Enqueue(t, "IT", 1)
				db.doneOf(t, "IT")
				return r.Health() == nil
			})
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "57014 tx 1", "40001 batch 1", "XX000 leased 1",
		"57014 tx 2", "57014 leased 2"))
}

// A goroutine that a handler leaves behind may end its transaction or its connection at any moment,
// also while the relay commits.
func TestAHandlerWhoseGoroutineEndsItsConnectionIsNoOutage(t *testing.T) {
	t.Parallel()
	most := 15
	if needs.InCI() {
		most = 40
	}
	type end func(db *database, tx *sql.Tx, pid int)
	together(t, map[string]end{
		"commits":    func(_ *database, tx *sql.Tx, _ int) { _ = tx.Commit() },
		"rolls back": func(_ *database, tx *sql.Tx, _ int) { _ = tx.Rollback() },
		"terminates": func(db *database, _ *sql.Tx, pid int) { _, _ = db.Exec(`SELECT pg_terminate_backend($1)`, pid) },
	}, func(t *testing.T, _ string, end end) {
		db := newDatabase(t)
		reg := handlers.New()
		var left sync.WaitGroup
		var ran atomic.Int64
		registerTx(reg, outbox.NewTaskType[payload]("ENDS"),
			func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
				ran.Add(1)
				var pid int
				if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return err
				}
				left.Go(func() {
					for range 3 {
						end(db, tx, pid)
						runtime.Gosched()
					}
				})
				return nil
			}, handlers.MaxAttempts(50), handlers.Backoff(constant(time.Millisecond)))
		registerTx(reg, outbox.NewTaskType[payload]("OTHER"), txEffect)
		db.Enqueue(t, "ENDS", most)
		own := open(t, db.URL) // the test's statements meet no connection that was ended
		r := run(t, own, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
		eventually(t, 30*time.Second, "many have run", func() bool {
			return int(ran.Load()) >= most*3/2 || db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
		})
		for range 5 {
			db.Enqueue(t, "OTHER", 1)
			db.doneOf(t, "OTHER")
		}
		noOutage(t, r.Log.String())
		r.Stop()
		left.Wait()
		db.Do(t, `DELETE FROM outbox.task`)
		db.Do(t, `DELETE FROM outbox.running`)
	})
}

// keep has a trigger refuse rows with a SQLSTATE, until its function keep is dropped.
func (db *database) keep(t *testing.T, code, event, when string) {
	t.Helper()
	db.Do(t, `CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'kept' USING ERRCODE = '`+code+`'; END $$;
		CREATE TRIGGER keep BEFORE `+event+` FOR EACH ROW WHEN (`+when+`) EXECUTE FUNCTION keep()`)
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
	type refusal struct {
		insert, log string
		health      error
	}
	together(t, map[string]refusal{
		"scheduled": {`(task_type, state) VALUES ('TX', 'scheduled')`,
			"level=ERROR msg=\"outbox: scheduled tasks of this type cannot be promoted\" task_type=TX", relay.ErrTypeFails},
		"waiting": {`(task_type, ordering_key) VALUES ('TX', 'k')`,
			"level=ERROR msg=\"outbox: tasks with ordering keys cannot be promoted\"", relay.ErrOrderingFails},
	}, func(t *testing.T, state string, c refusal) {
		db := newDatabase(t)
		db.keep(t, "P0001", `UPDATE ON outbox.task`, `OLD.state = '`+state+`'`)
		db.Do(t, `INSERT INTO outbox.task `+c.insert)
		r := run(t, db, all(), relay.Config{PollInterval: 50 * time.Millisecond})
		unhealthy(t, r, c.health, "SQLSTATE P0001")
		for range 5 {
			db.Enqueue(t, "TX", 1)
			db.Enqueue(t, "BATCH", 1)
			db.becomes(t, 20*time.Second, 1, "ready tasks are done", `SELECT count(*) FROM outbox.task`)
		}
		r.Log.Want(t, 1, c.log)
		noOutage(t, r.Log.String())
		db.heals(t, r, `DROP FUNCTION keep CASCADE`)
	})
}

// The journal writes the runs of several types in one statement.
func TestATypeWhoseRunsCannotBeJournalledDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	type refusal struct {
		tasks string // whose ids are from 1000 on
		died  int
	}
	together(t, map[string]refusal{
		"INSERT": {`'TX', 0`, 0},
		// A batch with a task that has no attempt left is given back, and its row in the journal is
		// to go.
		"DELETE": {`'BATCH', CASE n WHEN 1000 THEN 20 ELSE 0 END`, 1},
	}, func(t *testing.T, refused string, c refusal) {
		began, db := time.Now(), newDatabase(t)
		reg := all()
		registerTx(reg, outbox.NewTaskType[payload]("OTHER"), txEffect)
		db.keep(t, "P0001", refused+` ON outbox.running`,
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
		_, err := gate.exec(`BEGIN; LOCK TABLE outbox.running IN EXCLUSIVE MODE`)
		must(err)
		db.Enqueue(t, "OTHER", 1)
		claimed()
		db.Do(t, `INSERT INTO outbox.task (task_id, task_type, attempt) OVERRIDING SYSTEM VALUE
				SELECT n, `+c.tasks+` FROM generate_series(1000, 1002) n`)
		db.Enqueue(t, "OTHER", 1)
		claimed()
		_, err = gate.exec(`COMMIT`)
		must(err)
		eventually(t, 20*time.Second, "the refusal is logged", func() bool { return r.Log.Count("cannot be claimed") > 0 })
		for range 20 {
			db.Enqueue(t, "OTHER", 1)
			db.doneOf(t, "OTHER")
		}
		// One record a minute: the time that all this takes is the machine's.
		minutes := int(time.Since(began) / time.Minute)
		if all, other := r.Log.Count("cannot be claimed"), r.Log.Count("task_type=OTHER"); all > 1+minutes || other != 0 {
			t.Errorf("%d refusals were logged in %d minutes, want one in each; %d were of the other type", all, minutes, other)
		}
		noOutage(t, r.Log.String())
		db.Do(t, `DROP FUNCTION keep CASCADE`)
		db.Emptied(t, 20*time.Second)
		done := db.Int(t, `SELECT count(*) FROM effect WHERE task_id >= 1000 AND attempt = 1`)
		if died := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); done != 3-c.died || died != c.died {
			t.Errorf("%d tasks were done in their first attempt and %d died, want %d and %d\n%s", done, died, 3-c.died, c.died,
				db.Dump(t))
		}
	})
}

func TestANoteThatPostgreSQLRefusesHoldsUpItsTaskOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, $1, $2 FROM generate_series(1, 3) n`,
		someToken, liveRelay)
	db.keep(t, "P0001", `DELETE ON outbox.running`, `OLD.task_id = 1`)
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
	db.Do(t, `DROP FUNCTION keep CASCADE`)
	if err := l.Journal.WriteNotes(t.Context(), true); err != nil {
		t.Error(err)
	}
	if err := l.Record(t.Context(), 1); err != nil {
		t.Errorf("its run when the note is written: %v", err)
	}
	db.Do(t, `DELETE FROM outbox.running`)
}

const unhandled = "no relay has a handler for this task type"

// untouched checks that the n tasks of a type are as they were enqueued.
func untouched(t testing.TB, db *database, taskType string, n int) {
	t.Helper()
	db.want(t, n, "untouched tasks of type "+taskType, `SELECT count(*) FROM outbox.task WHERE task_type = $1
		AND attempt = 0 AND attempted_at IS NULL
		AND relay_id IS NULL AND last_error IS NULL AND state = CASE
		WHEN run_at > created_at THEN 'scheduled' ELSE 'ready' END`, taskType)
}

// F11.
func TestATypeWithoutAHandlerIsLeftAloneAndReportedAtTheStart(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	db.Enqueue(t, "MANY", 1500)
	db.Enqueue(t, "FEW", 3)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'LATER', now() + interval '1 day'
		FROM generate_series(1, 5)`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'MANY', now() + interval '1 day'
		FROM generate_series(1, 5)`)
	registerTx(reg, typeTx, txEffect)
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "three types are reported", func() bool { return r.Log.Count(unhandled) >= 3 })
	for _, want := range []string{"task_type=MANY tasks=1000", "task_type=FEW tasks=3", "task_type=LATER tasks=5"} {
		if !strings.Contains(r.Log.String(), want) {
			t.Errorf("no record has %s", want)
		}
	}
	db.Enqueue(t, "TX", 100)
	db.becomes(t, 20*time.Second, 0, "the relay's own type is worked on", `SELECT count(*) FROM outbox.task
		WHERE task_type = 'TX'`)
	r.Stop()
	untouched(t, db, "MANY", 1505)
	untouched(t, db, "FEW", 3)
	untouched(t, db, "LATER", 5)
	if n := r.Log.Count(unhandled); n%3 != 0 { // each type once, and again after a minute
		t.Errorf("%d records say that a type has no handler, want one of each of three types", n)
	}
	db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
}

// resting is a relay that does not run.
func resting(t testing.TB, db *database, reg *handlers.Registry, log *records) *relay.Relay {
	t.Helper()
	r, err := relay.New(db.DB, reg, relay.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	must(err)
	return r
}

func TestATypeIsReportedOnceAMinuteUnlessALivingRelayHandlesIt(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	l := newLoops(resting(t, db, idle(), log), "")
	defer l.Close()
	db.Enqueue(t, "LEASED", 1)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'h', 1, now() + interval '1 hour', '{LEASED}')`, liveRelay)
	for i, alive := range []string{"1 hour", "-1 second"} {
		db.Do(t, `UPDATE outbox.relay SET alive_until = now() + $2::interval WHERE relay_id = $1`, liveRelay, alive)
		if rest := l.done(t, "report unhandled types"); rest != time.Minute {
			t.Errorf("the next report comes after %v, want a minute", rest)
		}
		log.Want(t, i, unhandled)
	}
}
