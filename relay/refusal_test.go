package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/access"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// worker is an outbox with its roles on a server of its own, where they meet no others, and a pool of
// a member of the workers.
func worker(t *testing.T) (owner, app *database) {
	t.Helper()
	owner = adopt(t, pgtest.Local(t, nil).URL())
	must(schema.GrantRoles(t.Context(), owner.DB))
	owner.Do(t, `CREATE ROLE relay_app LOGIN PASSWORD 'of the test' IN ROLE outbox_worker`)
	return owner, open(t, as(t, owner.URL, "relay_app", "of the test"))
}

// busyRegistry has handlers with which a relay that is kept busy uses nearly all of its rights.
func busyRegistry() *handlers.Registry {
	reg := handlers.New()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
			switch task.Payload.N {
			case 1:
				return errAlways
			case 2:
				if task.LastError == "" {
					return handlers.RetryAfter(time.Millisecond, errAlways)
				}
			}
			return nil
		}, handlers.Retention(time.Microsecond), handlers.MaxAttempts(1), handlers.MaxRunning(5),
			handlers.Rate(10000, time.Second))
	}
	handlers.Tx(reg, outbox.NewTaskType[payload]("GROUP"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		return nil
	}, handlers.GroupCommit(5, time.Second))
	handlers.Leased(reg, outbox.NewTaskType[payload]("COMPLETES"),
		func(ctx context.Context, task *outbox.Task[payload]) error {
			return errors.Join(task.Extend(ctx, time.Minute), task.Complete(ctx, func(*sql.Tx) error { return nil }))
		})
	return reg
}

// keepBusy gives the relay all kinds of work, a dead relay's and a request to cancel among them.
func (db *database) keepBusy(t *testing.T, n int) {
	t.Helper()
	var specs []outbox.TaskSpec
	for _, taskType := range []string{"TX", "BATCH", "LEASED", "COMPLETES", "GROUP", "GROUP"} {
		for i, o := range []outbox.Option{outbox.OrderedBy("o"), outbox.Priority(1), outbox.Unique("u"),
			outbox.After(time.Millisecond), outbox.GroupBy("g"), outbox.GroupBy("g")} {
			specs = append(specs, outbox.TaskSpec{Type: taskType, Payload: payload{N: i}, Options: []outbox.Option{o}})
		}
	}
	must(outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, specs)
		return err
	}))
	db.Do(t, fmt.Sprintf(`UPDATE outbox.maintenance SET due_at = now();
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ('%[1]s', 'host', 1, now() - interval '1 second', '{}') ON CONFLICT (relay_id) DO UPDATE SET taken_over_at = NULL;
		INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token, payload)
		VALUES ('TX', 'leased', 1, '%[1]s', '%[2]s', '{}');
		INSERT INTO outbox.running (task_id, token, relay_id) VALUES (-%[3]d, '%[2]s', '%[1]s') ON CONFLICT DO NOTHING;
		SELECT outbox.cancel_task(min(task_id)) FROM outbox.task WHERE state = 'ready'`, deadRelay, someToken, n))
}

// notOfRuns are rights that no statement of a relay that has started needs, unless it is idle or a
// row is missing; or those of its handlers, of operators and of the enqueues of its schedules'
// keys.
var notOfRuns = strings.Fields(`
	SELECT:migration SELECT:identity SELECT:origin INSERT:origin UPDATE:origin DELETE:origin EXECUTE:note_origin
	EXECUTE:this_database SELECT:unowned_schedule SELECT:audit INSERT:audit INSERT:cancel UPDATE:cancel
	INSERT:keyed_task SELECT:keyed_task EXECUTE:enqueue_task EXECUTE:enqueue_keyed EXECUTE:cancel_task EXECUTE:run_task_now
	SELECT:unique_key INSERT:unique_key UPDATE:unique_key DELETE:unique_key INSERT:inbox UPDATE:sample
	INSERT:maintenance DELETE:maintenance INSERT:schedule DELETE:schedule INSERT:task_type DELETE:task_type
	INSERT:bucket DELETE:bucket DELETE:slot UPDATE:counter_log DELETE:counter DELETE:relay INSERT:promote_lock
	SELECT:task_task_id_seq SELECT:headless_key_headless_key_id_seq SELECT:cancel_cancel_id_seq SELECT:audit_entry_id_seq
	EXECUTE:split_lost`)

// oftenRevoked are the rights that the default suite takes.
var oftenRevoked = strings.Fields(`USAGE: SELECT:task DELETE:task INSERT:relay EXECUTE:claim_tasks EXECUTE:lease_tasks
	EXECUTE:record_runs SELECT:schedule SELECT:headless_key UPDATE:wake`)

// Of each right that the role lacks, Health, the log and observers name right, object, role and
// remedy. That is no outage, and the relay goes on by itself once the right is granted.
func TestAMissingRightIsNamedUntilItIsGranted(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	owner, app := worker(t)
	h := &heard{}
	r := run(t, app, busyRegistry(), relay.Config{ListenDSN: app.URL, Workers: 8, PollInterval: 100 * time.Millisecond,
		DeadRetention: time.Hour, Observers: h.observers(), Schedules: []relay.Schedule{{Name: "often",
			Timing: relay.Every(time.Second), Task: outbox.TaskSpec{Type: "TX", Payload: payload{}}}}})
	idleReg := handlers.New()
	registerTx(idleReg, outbox.NewTaskType[payload]("IDLE"), txEffect)
	idle := run(t, app, idleReg, relay.Config{ListenDSN: app.URL, PollInterval: 100 * time.Millisecond})
	eventually(t, time.Minute, "they are healthy", func() bool { return r.Health() == nil && idle.Health() == nil })
	listening(t, owner)
	for _, g := range access.Grants() {
		right := g.Right + ":" + g.Object
		if g.Group != "worker" || slices.Contains(notOfRuns, right) ||
			!relaytest.Long && !slices.Contains(oftenRevoked, right) {
			continue
		}
		object := strings.TrimSuffix(g.Kind+" outbox."+g.Object, ".")
		owner.Do(t, fmt.Sprintf("REVOKE %s ON %s FROM outbox_worker", g.Right, object))
		n, of := 0, r
		if g.Object == "wake" { // which a relay that works does not set
			of = idle
		}
		eventually(t, time.Minute, "the relay names "+g.Right+" on "+object, func() bool {
			n++
			owner.keepBusy(t, n)
			err := of.Health()
			if errors.Is(err, relay.ErrOutage) {
				t.Fatalf("%s on %s: Health is %v", g.Right, object, err)
			}
			return errors.Is(err, relay.ErrRefused) && containsAll(err.Error(), `"relay_app"`, g.Right, object, "outbox roles apply")
		})
		if of.Log.Count("lacks") == 0 {
			t.Errorf("%s on %s: not in the log", g.Right, object)
		}
		owner.Do(t, fmt.Sprintf("GRANT %s ON %s TO outbox_worker", g.Right, object))
		relaytest.Healthy(t, r, "with "+g.Right+" on "+object)
		relaytest.Healthy(t, idle, "with "+g.Right+" on "+object)
		owner.Enqueue(t, "TX", 1)
		owner.becomes(t, time.Minute, 0, "ready tasks", `SELECT count(*) FROM outbox.task WHERE state = 'ready'`)
	}
	r.Stop()
	noOutage(t, r.Log.String())
	noOutage(t, idle.Log.String())
	began := 0
	for _, e := range h.events() {
		switch e {
		case relay.EventRefusalBegan:
			began++
		case relay.EventRefusalEnded:
			began--
		case relay.EventOutageBegan:
			t.Error("observers heard of an outage")
		}
	}
	if began != 0 || !slices.Contains(h.events(), relay.EventRefusalBegan) {
		t.Errorf("observers heard %v", h.events())
	}
	idle.Stop()
	owner.Do(t, `DELETE FROM outbox.running`) // of dead relays, and of tasks that were canceled
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}

// An object that is gone under a running relay is named, once in the log, until it is back.
func TestAnObjectThatIsGoneIsNamedUntilItIsBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r := run(t, db, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	for _, c := range []struct{ away, back, want, task string }{
		{`ALTER SCHEMA outbox RENAME TO moved`, `ALTER SCHEMA moved RENAME TO outbox`, `the schema "outbox" is missing in the database`, ""},
		{`ALTER TABLE outbox.relay RENAME TO gone`, `ALTER TABLE outbox.gone RENAME TO relay`, "the table outbox.relay is missing", ""},
		{`ALTER TABLE outbox.task RENAME TO gone`, `ALTER TABLE outbox.gone RENAME TO task`, "the table outbox.task is missing", ""},
		{`ALTER FUNCTION outbox.poll RENAME TO gone`, `ALTER FUNCTION outbox.gone RENAME TO poll`, "the function outbox.poll is missing", ""},
		{`ALTER FUNCTION outbox.claim_tasks RENAME TO gone`, `ALTER FUNCTION outbox.gone RENAME TO claim_tasks`,
			"the function outbox.claim_tasks is missing", "TX"},
		{`ALTER TABLE outbox.relay RENAME pid TO gone`, `ALTER TABLE outbox.relay RENAME gone TO pid`,
			"the column outbox.relay.pid is missing", ""},
	} {
		eventually(t, time.Minute, "it is healthy before "+c.away, func() bool { return r.Health() == nil })
		logged := r.Log.Count("refuses what the relay needs")
		db.Do(t, c.away)
		if c.task != "" {
			db.Enqueue(t, c.task, 1)
		}
		eventually(t, time.Minute, "Health says that "+c.want, func() bool {
			err := r.Health()
			if errors.Is(err, relay.ErrOutage) {
				t.Fatalf("%s: Health is %v", c.away, err)
			}
			return errors.Is(err, relay.ErrRefused) && strings.Contains(err.Error(), c.want)
		})
		db.Do(t, c.back)
		if n := r.Log.Count("refuses what the relay needs") - logged; n > 1 {
			t.Errorf("%s: %d records", c.away, n)
		}
	}
	eventually(t, time.Minute, "it is healthy", func() bool { return r.Health() == nil })
	db.enqueueEach(t, 1)
	db.Emptied(t, time.Minute)
	noOutage(t, r.Log.String())
}

// A look for the reason that breaks its connection is no outage: no heartbeat is sent over that.
func TestALookForAReasonThatFailsIsNoOutage(t *testing.T) {
	t.Parallel()
	db, f := newDatabase(t), &faulty{}
	r := run(t, db.through(t, f.wrap), all(), relay.Config{})
	for range 3 {
		f.arm("outbox: see what the role lacks", fault{err: context.DeadlineExceeded, after: true})
		db.Do(t, `ALTER TABLE outbox.relay RENAME pid TO gone`)
		eventually(t, time.Minute, "the look has failed", f.fired)
		named := r.Log.Count("the column outbox.relay.pid is missing")
		eventually(t, time.Minute, "the next look names the column", func() bool {
			return r.Log.Count("the column outbox.relay.pid is missing") > named
		})
		db.Do(t, `ALTER TABLE outbox.relay RENAME gone TO pid`)
		eventually(t, time.Minute, "it is healthy", func() bool { return r.Health() == nil })
	}
	r.Log.Want(t, 0, "driver: bad connection")
	noOutage(t, r.Log.String())
}

// A relay that starts without a right waits for it, and RunOnce returns an error that names it.
func TestARelayThatStartsWithoutARightNamesIt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	name := "starts_in_" + db.Text(t, `SELECT current_database()`)
	db.Do(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'of the test'`)
	t.Cleanup(func() { db.Do(t, `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	app := open(t, as(t, db.URL, name, "of the test"))
	r := unstarted(t, app, all(), relay.Config{})
	named := func(what string, err error) bool { // once there was time to look for the reason
		t.Helper()
		if err == nil || errors.Is(err, relay.ErrOutage) {
			t.Fatalf("%s: %v", what, err)
		}
		return errors.Is(err, relay.ErrRefused) &&
			strings.Contains(err.Error(), `the role "`+name+`" lacks USAGE on the schema outbox`)
	}
	eventually(t, time.Minute, "RunOnce names the right", func() bool { return named("RunOnce", r.RunOnce(t.Context())) })
	must(r.Start(t.Context()))
	eventually(t, time.Minute, "Health names the right", func() bool { return named("Health", r.Health()) })
	db.Do(t, `GRANT ALL ON SCHEMA outbox TO `+name+`; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO `+name+`;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO `+name+`; GRANT ALL ON effect TO `+name)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, time.Minute)
	must(r.Stop(t.Context()))
}

// A relay whose role is a member of the workers' and has no other right does all that relays do:
// each of its loops leaves what the owner's leaves, it wakes up, runs each kind, cancels and fires
// schedules.
func TestARelayNeedsNoMoreThanTheRoleOfWorkers(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner, worker := worker(t)
	owner.Do(t, `CREATE ROLE web_app LOGIN PASSWORD 'of the test' IN ROLE outbox_enqueuer`)
	web := open(t, as(t, owner.URL, "web_app", "of the test"))
	for _, c := range faultyLoops {
		want, _ := c.try(t, owner, owner, &faulty{}, 0, fault{}, "")
		if got, _ := c.try(t, owner, worker, &faulty{}, 0, fault{}, ""); got != want {
			t.Errorf("%s: a worker's leaves\n%s\nwant\n%s", c.name, got, want)
		}
	}
	for _, job := range upkeep.SharedJobs(time.Hour) {
		log := &records{}
		r := unstarted(t, worker, all(), relay.Config{DeadRetention: time.Hour,
			Logger: slog.New(slog.NewTextHandler(log, nil))})
		l := newLoops(r, job.Name)
		l.done(t, "maintain")
		l.Close()
		log.Want(t, 0, "42501")
	}
	owner.Do(t, emptyAll)

	reg := handlers.New()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		each(reg, kind, func(ctx context.Context, task *outbox.Task[payload]) error {
			switch task.Payload.N {
			case 1:
				return errAlways
			case 2:
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}, handlers.Retention(time.Hour), handlers.MaxAttempts(1), handlers.MaxRunning(2), handlers.Rate(1000, time.Second))
	}
	handlers.Leased(reg, outbox.NewTaskType[payload]("EXTENDS"),
		func(ctx context.Context, task *outbox.Task[payload]) error {
			return errors.Join(task.Extend(ctx, time.Minute), task.Complete(ctx, func(tx *sql.Tx) error {
				_, err := outbox.Enqueue(ctx, tx, "LATER", task.Payload, outbox.UniquePayload(), outbox.After(time.Hour))
				return err
			}))
		})
	config := relay.Config{ListenDSN: worker.URL, Workers: 10,
		Schedules: []relay.Schedule{{Name: "often", Timing: relay.Every(time.Second),
			Task: outbox.TaskSpec{Type: "EXTENDS", Payload: payload{}}}}}
	r := run(t, worker, reg, config)
	listening(t, owner)
	for _, taskType := range []string{"TX", "BATCH", "LEASED", "EXTENDS"} {
		for n, opts := range [][]outbox.Option{{outbox.OrderedBy("o")}, {outbox.OrderedBy("o")}, {outbox.Unique("u")},
			{outbox.After(100 * time.Millisecond)}} {
			web.keyed(t, taskType, n, opts...)
		}
	}
	eventually(t, 60*time.Second, "all are done or canceled", func() bool {
		owner.Do(t, `SELECT outbox.cancel_task(task_id) FROM outbox.task WHERE payload = '{"N": 2}'`)
		return owner.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type <> 'LATER'`) == 0
	})
	owner.wantText(t, "BATCH, LEASED, TX", `SELECT string_agg(task_type, ', ' ORDER BY task_type) FROM outbox.dead_task`)
	r.Stop()
	for line := range strings.Lines(r.Log.String()) {
		if strings.Contains(line, "permission denied") || strings.Contains(line, "42501") ||
			strings.Contains(line, "no wake-ups") {
			t.Errorf("a worker lacks a right: %s", line)
		}
	}
}

// A VACUUM FULL of one of the outbox's tables that waits behind a dump, say, lets no other statement
// at that table. What the relay cannot write meanwhile is no attempt of any task.
func TestALockOnATableOfTheOutboxIsNoAttempt(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		tables := "task running done_task relay"
		if needs.InCI() {
			tables = db.Text(t, `SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
				AND relkind = 'r'`)
		}
		for table := range strings.FieldsSeq(tables) {
			t.Run(table, func(t *testing.T) { runUnderLock(t, db, table) })
		}
	})
}

const blockedBySQL = `SELECT pid FROM pg_stat_activity WHERE datname = current_database()
	AND $1 = ANY (pg_blocking_pids(pid))`

// runUnderLock runs tasks of each kind, with one attempt, that run when the lock comes.
func runUnderLock(t *testing.T, db *database, table string) {
	const each = 2
	var begun, leased atomic.Int64
	reg, open, told := handlers.New(), make(chan struct{}), &heard{}
	kinds := map[string]string{"TX": "tx", "KEPT": "tx", "BATCH": "batch", "GROUP": "tx", "LEASED": "leased",
		"COMPLETE": "complete", "EXTENDED": "leased"}
	more := map[string]handlers.Option{"KEPT": handlers.Retention(time.Hour), "GROUP": handlers.GroupCommit(2, 0)}
	for name, kind := range kinds {
		opts := []handlers.Option{handlers.MaxAttempts(1), retrySoon()}
		if more[name] != nil {
			opts = append(opts, more[name])
		}
		relaytest.Register(reg, kind, name, each,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					begun.Add(1)
					if name == "LEASED" {
						leased.Add(1)
					}
					if tx != nil {
						if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
							return err
						}
					}
				}
				<-open
				if name == "EXTENDED" {
					return tasks[0].Extend(ctx, time.Minute)
				}
				return nil
			}, opts...)
		db.Enqueue(t, name, each)
	}
	r := run(t, db, reg, relay.Config{Workers: 14, Observers: told.observers()})
	// Of a group the second task begins after the first.
	eventually(t, time.Minute, "all handlers run", func() bool { return int(begun.Load()) >= each*len(kinds)-1 })

	locker := db.begin(t)
	var pid int
	noErr(t, locker.QueryRow(`SELECT pg_backend_pid()`).Scan(&pid))
	locked := make(chan error, 1)
	go func() {
		_, err := locker.Exec(`LOCK TABLE outbox.` + table + ` IN ACCESS EXCLUSIVE MODE`)
		locked <- err
	}()
	db.becomes(t, time.Minute, 1, "the lock is asked for", `SELECT count(*) FROM pg_locks WHERE pid = $1
		AND mode = 'AccessExclusiveLock' AND locktype = 'relation'`, pid)
	close(open)
	canceled := 0
	eventually(t, time.Minute, "what waits for the lock is canceled, or all is done", func() bool {
		canceled += db.Int(t, `SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM (`+blockedBySQL+`) b`, pid)
		done := 0
		for _, outcomes := range told.outcomes() {
			done += strings.Count(outcomes, "done")
		}
		return canceled >= 16 || done == each*len(kinds)
	})
	noErr(t, errors.Join(<-locked, locker.Rollback()))
	db.Emptied(t, time.Minute)
	r.Stop()
	for name, outcomes := range told.outcomes() {
		if left := strings.NewReplacer("infrastructure", "", "released", "", "done", "", " ",
			"").Replace(outcomes); left != "" {
			t.Errorf("%s ended as %s", name, outcomes)
		}
	}
	if n := leased.Load(); n != each {
		t.Errorf("%d runs of %d Leased tasks: a result was to be written again", n, each)
	}
	db.wantRows(t, 0, "outbox.dead_task")
	db.wantRows(t, each*(len(kinds)-2), "effect WHERE attempt = 1") // plain Leased handlers leave none
	db.Do(t, `TRUNCATE effect, outbox.done_task`)
	db.wantRows(t, 0, "outbox.running")
}
