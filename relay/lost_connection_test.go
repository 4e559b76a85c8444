package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/pgdb"
	"github.com/txoutbox/outbox/relay"
)

// faultyLoop is a loop of the relay's, the work that it finds, and what must come of it.
type faultyLoop struct {
	name  string
	first func(*loops) // before setup
	setup string
	begin func(*loops) // after setup
	pass  func(context.Context, *loops) error
	state string // a query for what is compared with what a pass without faults leaves
	once  bool   // there is one pass only: it tries again by itself
}

func upkeepJob(name string) func(context.Context, *loops) error {
	return func(ctx context.Context, l *loops) error {
		_, err := l.Upkeep(ctx, name)
		return err
	}
}

func pollOnce(ctx context.Context, l *loops) error { return l.Poll(ctx) }

func fire(ctx context.Context, l *loops) error { return l.Schedule(ctx) }

const emptyAll = `DELETE FROM outbox.task; DELETE FROM outbox.dead_task; DELETE FROM outbox.done_task; DELETE
	FROM outbox.running; DELETE FROM outbox.relay;
	DELETE FROM outbox.unique_key; DELETE FROM outbox.headless_key; DELETE FROM outbox.cancel; DELETE
	FROM outbox.maintenance; DELETE FROM outbox.sample; DELETE FROM outbox.bucket;
	DELETE FROM outbox.slot; DELETE FROM outbox.task_type; DELETE FROM outbox.schedule; DELETE FROM outbox.counter; DELETE
	FROM outbox.counter_log; DELETE FROM outbox.inbox;`

// tasksNow is what is left of tasks, each with what may not change unseen: no attempt is counted by
// any of these loops.
const tasksNow = `SELECT string_agg(format('%s %s attempt %s token %s relay %s', payload, state, attempt,
	lease_token IS NOT NULL, relay_id), ', ' ORDER BY task_id) FROM outbox.task`

// past is a schedule's next_at as it is when two firings were missed. Its timing is as this test's
// relay has it.
const past = `UPDATE outbox.schedule SET next_at = timestamptz '0001-01-01 00:00:00+00' + floor(extract(epoch
	FROM now() - timestamptz '0001-01-01 00:00:00+00') / 3600000) * interval '1000 hours' - interval '1000 hours'`

func dead(relayID, alive string) string {
	return `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('` + relayID +
		`', 'host', 1, now() + interval '` + alive + `', '{}');`
}

// takenOver gives all leases to another relay, which lives: one of no relay, or of this relay under
// another token, is given back.
func (d *database) takenOver(t *testing.T) {
	t.Helper()
	d.Do(t, dead(someUUID, "1 hour")+`UPDATE outbox.task SET relay_id = '`+someUUID+`', lease_token = '`+someUUID+`'
		WHERE state = 'leased'`)
}

var faultyLoops = []faultyLoop{
	{name: "heartbeat", pass: func(ctx context.Context, l *loops) error { return l.Heart.Beat(ctx) },
		state: `SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() - interval '1 minute'`},
	{name: "take over", pass: upkeepJob("take over"), state: tasksNow,
		setup: dead(deadRelay, "-1 second") + dead(liveRelay, "1 hour") + `
		INSERT INTO outbox.task (task_type, payload, state, attempt, relay_id, lease_token, leased_until)
		SELECT 'LEASED', to_jsonb(n), 'leased', 1, CASE n WHEN 1 THEN '` + deadRelay + `'
		WHEN 2 THEN '` + newRelay + `' ELSE '` + liveRelay + `' END::uuid, '` + someToken + `',
		       CASE n WHEN 3 THEN now() - interval '1 second' END FROM generate_series(1, 4) n`},
	{name: "fold", pass: upkeepJob("maintain"), setup: `INSERT INTO outbox.task (task_type) SELECT 'TX'
		FROM generate_series(1, 3); INSERT INTO outbox.task (task_type) VALUES ('OTHER'); DELETE FROM outbox.task
		WHERE task_type = 'OTHER'`,
		state: `SELECT concat((SELECT count(*) FROM outbox.counter_log), (SELECT string_agg(format(' %s %s %s %s', task_type,
			kind, tasks, arrived), ',' ORDER BY task_type, kind) FROM outbox.counter))`},
	{name: "promote scheduled", pass: pollOnce, state: tasksNow,
		setup: `INSERT INTO outbox.task (task_type, payload, state, attempt, run_at)
		SELECT 'TX', to_jsonb(n), 'scheduled', n, now() + (n - 3) * interval '1 hour' FROM generate_series(1, 4) n`},
	{name: "promote heads",
		pass: pollOnce, state: `SELECT concat((` + tasksNow + `), (SELECT count(*) FROM outbox.headless_key))`,
		setup: `INSERT INTO outbox.task (task_type, payload, ordering_key) SELECT 'TX', to_jsonb(n), (n % 3)::text
			FROM generate_series(1, 9) n; DELETE FROM outbox.promote_lock`},
	{name: "fire", first: register, setup: past, pass: fire, state: firedNow},
	{name: "journal notes", pass: func(ctx context.Context, l *loops) error { return l.Journal.WriteNotes(ctx, true) },
		begin: func(l *loops) { l.Note(1, 2, someToken) },
		setup: `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, '` + someToken + `', '` + liveRelay +
			`' FROM generate_series(1, 3) n;` + dead(liveRelay, "1 hour"),
		state: `SELECT string_agg(format('%s %s', task_id, lost_connection), ', ' ORDER BY task_id) FROM outbox.running`},
	{name: "sign off", once: true, pass: func(_ context.Context, l *loops) error { l.Heart.SignOff(); return nil },
		begin: func(l *loops) { _ = l.Heart.Beat(context.Background()) }, state: `SELECT count(*) FROM outbox.relay`},
}

const firedNow = `SELECT concat((SELECT string_agg(run_at::text, ', ' ORDER BY run_at, task_id)
	FROM outbox.task), ' and then ', (SELECT next_at FROM outbox.schedule))`

func register(l *loops) { _ = fire(context.Background(), l) }

// try does the loop's work through the faulty driver, with one failure unless nth is 0, and returns
// the calls that were made. Without a failure want is not known.
func (c faultyLoop) try(t *testing.T, db, pool *database, f *faulty, nth int, what fault,
	want string) (state string, calls []string) {
	t.Helper()
	name := fmt.Sprintf("%s, call %d: %v", c.name, nth, what)
	reg, log := handlers.New(), &records{}
	registerTx(reg, typeTx, txEffect)
	r, err := relay.New(pool.DB, reg, relay.Config{DeadRetention: time.Hour,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Schedules: []relay.Schedule{{Name: "tick", Timing: relay.Every(1000 * time.Hour),
			Task: relaytest.TypeFired.New(payload{}), CatchUp: outbox.CatchUpAll}}})
	must(err)
	l := newLoops(r, c.name)
	db.Do(t, emptyAll)
	if c.first != nil {
		c.first(l)
	}
	db.Do(t, c.setup)
	if c.begin != nil {
		c.begin(l)
	}
	l.Close()
	f.armNth(nth, what)
	for tries := 0; ; tries++ {
		err := c.pass(t.Context(), l)
		if err != nil { // the server may not know yet that the connection is closed, and hold its locks
			db.becomes(t, time.Minute, 0, name+": transactions are open", `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND state LIKE 'idle in transaction%'`)
		}
		state = db.Text(t, c.state)
		if nth == 0 || c.once || err == nil && state == want && tries > 0 { // a further pass changes nothing
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) && tries > 3 || tries == 60 { // else the machine is busy
			break
		}
		db.Do(t, `UPDATE outbox.maintenance SET due_at = clock_timestamp() - interval '1 second'
			WHERE due_at < clock_timestamp() + interval '10 seconds'`) // it rests no longer after an error
	}
	calls = f.calls()
	if !f.fired() {
		t.Errorf("%s: it did not fail", name)
	}
	if nth > 0 && state != want {
		t.Errorf("%s: it leaves\n%s\nwant\n%s\ncalls: %s\n%s", name, state, want, strings.Join(calls, "; "), log.Tail())
	}
	db.want(t, 0, name+": I9: counts that are not those of the rows", invariants.Miscounted)
	l.Close()
	return state, calls
}

// Calls of each loop that does not come with a task fail once, with OUTBOX_TEST_LONG=1 each call in
// each way. The loop's next passes do what is to be done, once: nothing is lost or doubled, no attempt
// is counted, and no part of it rests for long.
func TestEachLoopGoesOnAfterAnyFailureOfAnyOfItsCalls(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db, f := newDatabase(t, "postgres"), &faulty{}
	pool := db.through(t, f.wrap)
	pool.SetMaxIdleConns(-1) // each try connects
	var todo []func()
	for _, c := range faultyLoops {
		want, calls := c.try(t, db, pool, f, 0, fault{}, "")
		if want == "" || len(calls) < 2 || calls[0] != "connect" {
			t.Fatalf("%s: a pass without faults leaves %q after the calls %q", c.name, want, calls)
		}
		for i, call := range calls {
			ways := faults
			if !relaytest.Long { // each time another one
				ways = faults[len(todo)%len(faults):][:1]
			}
			if call == "connect" {
				ways = append(slices.Clone(ways), refusedConnection)
			}
			for _, what := range ways {
				todo = append(todo, func() { c.try(t, db, pool, f, i+1, what, want) })
			}
		}
	}
	for _, one := range relaytest.Part(todo, len(todo)/8) {
		one()
	}
	db.Do(t, emptyAll) // as some of what is set up never arrived
}

// loops are what a relay does at times of its own, each to be done when a test says: a pass is what
// one iteration of its loop does, with the loop's own dealing with errors.
type loops struct {
	relay.Parts
	now time.Time // of the heartbeat
}

// newLoops returns those of a relay that does not run and has never done any of it. Of its
// maintenance it does the one job, if any.
func newLoops(r *relay.Relay, only string) *loops {
	l := &loops{now: time.Now()}
	l.Parts = r.Parts(func() time.Time { return l.now }, only)
	for range 5 { // so that it takes over from others
		if err := l.Heart.Beat(context.Background()); err != nil {
			panic(err)
		}
		l.now = l.now.Add(upkeep.Interval)
	}
	return l
}

// Close gives all connections back.
func (l *loops) Close() {
	l.Heart.Close()
	l.Journal.CloseConnection()
	l.Conns.Close()
}

// Upkeep does one of the heartbeat's jobs. The error is that of a lost connection, as for the
// heartbeat; rest is for how long the job waits. A job of maintenance has waited for 10 s, not longer.
func (l *loops) Upkeep(ctx context.Context, name string) (rest time.Duration, err error) {
	if name == "maintain" {
		l.now = l.now.Add(10*time.Second + time.Millisecond)
	}
	return l.Heart.Do(ctx, name)
}

// done is Upkeep, again while a busy machine ends it by its own time limit.
func (l *loops) done(t *testing.T, name string) (rest time.Duration) {
	t.Helper()
	rest, err := l.Upkeep(t.Context(), name)
	for try := 0; try < 20 && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrBadConn)); try++ {
		rest, err = l.Upkeep(t.Context(), name)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return rest
}

// Note lets the journal forget a run, and mark another one as lost.
func (l *loops) Note(forget, mark int64, token string) {
	l.Journal.ForgetRuns(&store.Runs{IDs: []int64{forget}, Token: token})
	l.Journal.MarkLost(&store.Runs{IDs: []int64{mark}, Token: token})
}

// Record journals a run of a task.
func (l *loops) Record(ctx context.Context, taskID int64) error {
	one := store.NewRuns([]*store.Row{{ID: taskID}}, "")
	recorded := l.Journal.Record(one)
	l.Journal.WriteWaiting(ctx)
	_, err := recorded()
	return err
}

// C4, F39, I6: backends of relays and handlers are terminated, and the relay's statements cancelled, at
// random. A backend with a transaction id is one that has claimed, wherever it is now: in its handler,
// in the bookkeeping, or in its COMMIT.
func TestATerminatedBackendCostsNoAttempt(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	// A cancelled statement of a handler is the handler's failure, and what ends a run or follows the probe
	// checks the constraints that it deferred. A cancellation is late, now and then, and meets that.
	const ofRelay = `query LIKE '/* outbox: %' AND query NOT LIKE '/* outbox: probe%' AND query NOT LIKE '/* outbox: end a claim%'`
	kills := []string{
		`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM s WHERE ` + ofRelay + ` ORDER BY random() LIMIT 1) v`,
		`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM s WHERE backend_xid IS NOT NULL
			AND query NOT LIKE '/* outbox: journal%' ORDER BY random() LIMIT 1) v`,
		`SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM s WHERE ` + ofRelay +
			` AND state = 'active' ORDER BY random() LIMIT 1) v`,
	}
	const sessions = `WITH s AS (SELECT * FROM pg_stat_activity WHERE datname = current_database()
		AND application_name = 'relay') `
	db := newDatabase(t)
	app := open(t, with(t, db.URL, "application_name", "relay"))
	r := run(t, app, everyKind(), relay.Config{Workers: 4, ListenDSN: app.URL})
	killer := direct(t, db.URL) // a pooler could give it a connection that it has just killed
	n := 0
	for range relaytest.Times(8, 20) {
		for i, kill := range kills {
			eventually(t, 20*time.Second, fmt.Sprint("kill ", i), func() bool {
				killer.enqueueEach(t, 2)
				n += 2
				return killer.Int(t, sessions+kill) > 0
			})
		}
	}
	db.Emptied(t, 5*time.Minute)
	db.OnceEach(t, 2*n)
	late := 0
	for line := range strings.Lines(r.Log.String()) {
		if strings.Contains(line, "an attempt failed") &&
			strings.Contains(line, "canceling statement due to user request") {
			late++
		}
	}
	db.want(t, late, "attempts that failed", `SELECT sum(attempt - 1) FROM effect`)
}

// The connection of task.Complete breaks before its function is called.
func TestACompletionWhoseConnectionBreaksIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM broken) < 3 THEN PERFORM nextval('deaths'); PERFORM
		  pg_terminate_backend(pg_backend_pid()); END IF;
		  RETURN OLD;
		END $$;
		CREATE TABLE broken (error text);
		CREATE SEQUENCE deaths;
		CREATE TRIGGER die BEFORE DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION die()`)
	reg := leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		err := leasedEffect(ctx, task)
		if err != nil {
			db.Do(t, `INSERT INTO broken VALUES ($1)`, err.Error())
		}
		return err
	}, handlers.MaxAttempts(2), handlers.Backoff(constant(10*time.Millisecond)))
	db.Enqueue(t, "LEASED", 1)
	run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
	db.want(t, "3 3", "broken connections and killed backends",
		`SELECT count(*) || ' ' || (SELECT last_value FROM deaths)
		FROM broken`)
	db.want(t, 1, "completed in attempt", `SELECT attempt FROM effect`)
}

// proxied is a pool on the same database, with a proxy before what it leads to.
func (db *database) proxied(t *testing.T, driver string) (*proxy.Proxy, *database) {
	t.Helper()
	pooled, err := pgtest.PoolURL(driver, db.URL)
	must(err)
	p, url := relaytest.Through(t, pooled)
	return p, open(t, url, driver)
}

// A connection that ends around a COMMIT leaves its outcome unknown. The rows are the truth: each
// task has its effect once, and no attempt is counted for it.
func TestACommitOfUnknownOutcomeCostsNoAttemptAndRepeatsNoEffect(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for _, driver := range drivers {
		tests[driver] = func(t *testing.T) { testUnknownCommits(t, driver) }
	}
	relaytest.Together(t, tests)
}

func testUnknownCommits(t *testing.T, driver string) {
	db := newDatabase(t, driver)
	cutter, pool := db.proxied(t, driver)
	reg := handlers.New()
	var lost atomic.Int32 // leases, as observers hear
	for name, kind := range map[string]string{"TX": "tx", "TX FAILS": "tx", "BATCH": "batch", "COMPLETE": "complete",
		"LEASED": "leased", "LEASED FAILS": "leased"} {
		relaytest.Register(reg, kind, name, 10,
			func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				to := outbox.Querier(tx)
				if tx == nil {
					to = db
				}
				if strings.HasSuffix(name, "FAILS") && tasks[0].Attempt == 1 {
					return errAlways
				}
				return effect(ctx, to, tasks[0].ID, tasks[0].Attempt)
			}, retrySoon())
	}
	run(t, pool, reg, relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond,
		Observers: []relay.Observer{{Ended: func(_ context.Context, e relay.RunEnd) {
			if e.Type != "COMPLETE" && e.Tasks[0].Outcome == relay.OutcomeLeaseLost { // of COMPLETE the handler's own commit is cut
				lost.Add(1)
			}
		}}}})
	for _, c := range []struct{ taskType, statement string }{ // of the transaction whose commit is cut
		{"TX", "outbox: claim"},
		{"BATCH", "outbox: claim"},
		{"TX FAILS", "outbox: write back"},
		{"COMPLETE", "outbox: lease"},
		{"COMPLETE", "outbox: complete a leased task"},
		{"LEASED", "outbox: complete leased tasks"},
		{"LEASED FAILS", "outbox: end a lease"},
	} {
		for how, way := range []string{"request lost", "reply lost", "cut after the request"} {
			var cut atomic.Bool
			cutter.Set(&proxy.Trap{Catches: proxy.Commit(c.statement), How: proxy.How(how),
				Then: func() { cut.Store(true) }})
			id := db.Int(t, `INSERT INTO outbox.task (task_type) VALUES ($1) RETURNING task_id`, c.taskType)
			name := fmt.Sprintf("%s, %q: %v", c.taskType, c.statement, way)
			eventually(t, 30*time.Second, name+": the task is done", func() bool {
				return cut.Load() && db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
			})
			attempt := "1"
			if strings.HasSuffix(c.taskType, "FAILS") {
				attempt = "2"
			}
			db.want(t, attempt, name+": attempts with an effect", `SELECT string_agg(attempt::text, ' ') FROM effect
				WHERE task_id = $1`, id)
		}
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if n := lost.Load(); n != 0 {
		t.Errorf("observers heard of %d lost leases: a commit of unknown outcome is none", n)
	}
}

// A COMMIT that is lost on its way is no failure of the handler's.
func TestALostCommitIsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	c := db.counted(t)
	c.arm("COMMIT after outbox: end a claim", fault{err: driver.ErrBadConn})
	db.Enqueue(t, "TX", 1)
	run(t, c.database, all(), relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
	if attempt := db.Int(t, `SELECT attempt FROM effect`); attempt != 1 || !c.fired() {
		t.Errorf("done in attempt %d, want 1; the COMMIT was lost: %v", attempt, c.fired())
	}
}

// While the pool has no valid password, or cannot ask for it, that is an outage: no task is to
// blame, and it ends by itself.
func TestAPoolWithoutAValidPasswordIsAnOutage(t *testing.T) {
	t.Parallel()
	db := adopt(t, pgtest.Local(t, nil).URL()) // it asks for passwords
	type ask func() (password string, err error)
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		wrong  error // of the function; nil: the server refuses the password
		is     error // of Health
		errors int   // in the log
		open   func(ask) *sql.DB
	}{
		"pq_sealed": {errors.New("the vault is sealed"), relay.ErrOutage, 0, func(ask ask) *sql.DB {
			pool, err := pgdb.OpenFunc(func(context.Context) (string, error) {
				known, err := ask()
				return as(t, db.URL, "pq_sealed", known), err
			})
			must(err)
			return pool
		}},
		"pgx_rotated": {nil, relay.ErrRefused, 1, func(ask ask) *sql.DB {
			config, err := pgx.ParseConfig(as(t, db.URL, "pgx_rotated", ""))
			must(err)
			return stdlib.OpenDB(*config, stdlib.OptionBeforeConnect(func(_ context.Context, c *pgx.ConnConfig) (err error) {
				c.Password, err = ask()
				return err
			}))
		}},
	} {
		tests[name] = func(t *testing.T) {
			db.Do(t, `CREATE ROLE `+name+` SUPERUSER LOGIN PASSWORD 'C4n4ry-1'`)
			var sealed atomic.Bool
			var password atomic.Value
			password.Store("C4n4ry-1")
			pool := c.open(func() (string, error) {
				if sealed.Load() {
					return "", c.wrong
				}
				return password.Load().(string), nil
			})
			defer pool.Close()
			pool.SetMaxOpenConns(12)
			called, release := make(chan struct{}, 9), make(chan struct{})
			reg := handlers.New()
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, task *outbox.Task[payload]) error {
				called <- struct{}{}
				<-release
				err := task.Extend(ctx, time.Minute)
				called <- struct{}{}
				return err
			}, handlers.MaxAttempts(1), retrySoon())
			db.Enqueue(t, name, 1)
			r := relaytest.Run(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			defer r.Stop()
			<-called
			sealed.Store(c.wrong != nil)
			db.Do(t, `ALTER ROLE `+name+` PASSWORD 'C4n4ry-2'`)
			db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, name)
			eventually(t, 20*time.Second, "the relay says why it cannot connect", func() bool {
				return r.Log.Count(outageBegins)+r.Log.Count("refuses what the relay needs") == 1
			})
			close(release)
			<-called
			eventually(t, 20*time.Second, "Health says so", func() bool { return errors.Is(r.Health(), c.is) })
			password.Store("C4n4ry-2")
			sealed.Store(false)
			db.doneOf(t, name)
			db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
			r.Log.Want(t, c.errors, "level=ERROR")
			r.Log.Want(t, 0, "C4n4ry")
		}
	}
	relaytest.Together(t, tests)
}
