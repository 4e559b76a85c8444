package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

const (
	outageBegins = "PostgreSQL cannot be worked with"
	outageEnds   = "PostgreSQL can be worked with again"
)

// everyKind registers handlers whose effects are counted; the Leased one does not use the database, so that only the
// relay is disturbed.
func everyKind() *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, typeTx, txEffect)
	handlers.Batch(reg, typeBatch, 20, batchEffect)
	handlers.Leased(reg, typeLeased, func(context.Context, *outbox.Task[payload]) error { return nil })
	return reg
}

// disturbed enqueues n tasks of each kind, runs disturb, and checks that all tasks ran, each once and in its first
// attempt: I3, I6.
func disturbed(t *testing.T, db *database, n int, disturb func()) {
	t.Helper()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, kind, n)
	}
	disturb()
	db.Emptied(t, 5*time.Minute)
	if got := db.Int(t, `SELECT count(*) FROM effect`); got != 2*n {
		t.Errorf("%d effects, want %d", got, 2*n)
	}
	if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`); got != 2*n {
		t.Errorf("effects of %d tasks in their first attempt, want %d\n%s", got, 2*n, db.Text(t, `SELECT json_agg(e) FROM (SELECT attempt, count(*) FROM effect GROUP BY 1) e`))
	}
	if got := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); got != 0 {
		t.Errorf("%d dead letters\n%s", got, db.Dump(t))
	}
}

// reachable waits until the server answers this pool, which loses its dead connections by that.
func (db *database) reachable(t testing.TB) {
	t.Helper()
	eventually(t, 30*time.Second, "the server answers", func() bool { return db.Ping() == nil })
}

// C3: the server crashes or is shut down under load, and comes back.
func TestARelayWorksOnAfterTheServerStopped(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for _, mode := range relaytest.Part([]string{"immediate", "fast"}, 1) {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := pgtest.Local(t, nil)
			db := adopt(t, server.URL())
			r := run(t, open(t, db.URL), everyKind(), relay.Config{ListenDSN: db.URL})
			rounds := relaytest.Times(1, 2)
			disturbed(t, db, 200, func() {
				for i := range rounds {
					before := db.Int(t, `SELECT count(*) FROM outbox.task`)
					eventually(t, 30*time.Second, "the relay works", func() bool {
						return db.Int(t, `SELECT count(*) FROM outbox.task`) < before-100
					})
					if err := server.Stop(mode); err != nil {
						t.Fatal(err)
					}
					eventually(t, 10*time.Second, "the relay says that the server is gone", func() bool { return r.Log.Count(outageBegins) > i })
					if err := server.Start(context.Background()); err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					db.reachable(t)
					eventually(t, 20*time.Second, "the relay says that the server is back", func() bool { return r.Log.Count(outageEnds) > i })
					t.Log("worked again after", time.Since(begun).Round(time.Millisecond))
				}
			})
			if begins, ends := r.Log.Count(outageBegins), r.Log.Count(outageEnds); begins != rounds || ends != rounds {
				t.Errorf("%d outages were logged to begin and %d to end, want %d", begins, ends, rounds)
			}
		})
	}
}

// After an outage a pool is full of connections that are dead. None of them may cost a pause of its own.
func TestAfterARestartAnIdleRelayIsBackAtOnceWhateverThePoolHolds(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	app := open(t, db.URL)
	app.SetMaxIdleConns(60)
	reg := handlers.New()
	p := newProbe(reg, "TX")
	r := run(t, app, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	p.signUps(t, db, 3, 0, 0)
	for range 2 {
		fill(t, app, 50)
		if err := errors.Join(server.Stop("fast"), server.Start(context.Background())); err != nil {
			t.Fatal(err)
		}
		db.reachable(t)
		p.signUps(t, db, 20, 0, 0)
	}
	if n := r.Log.Count(outageBegins); n > 2 {
		t.Errorf("two restarts were logged as %d outages", n)
	}
}

// Its own poll is a minute away: the end of LISTEN tells it of the outage, and it tries until the server is back.
func TestARelayThatIsWokenByListenIsBackAfterAnOutageBeforeItPolls(t *testing.T) {
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	reg := handlers.New()
	ran := make(chan int64, 2)
	handlers.Tx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
		ran <- task.ID
		return nil
	})
	r := run(t, open(t, db.URL), reg, relay.Config{PollInterval: time.Minute, ListenDSN: db.URL})
	done := func(what string) {
		t.Helper()
		db.Enqueue(t, "TX", 1)
		select {
		case <-ran:
		case <-time.After(45 * time.Second):
			t.Fatal("not before the poll: " + what)
		}
		db.Emptied(t, 30*time.Second)
	}
	done("the first task")
	if err := server.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 45*time.Second, "the relay says that the server is gone", func() bool { return r.Log.Count(outageBegins) == 1 })
	if err := server.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	db.reachable(t)
	eventually(t, 45*time.Second, "the relay says that the server is back", func() bool { return r.Log.Count(outageEnds) == 1 })
	done("the first task after the outage")
	done("the next one")
}

// fill leaves n idle connections in the pool.
func fill(t testing.TB, pool *database, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		conn, err := pool.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Close()
	}
}

// C4, F39: statements are cancelled and connections terminated at random, those of the relay's own and of handlers.
func TestKilledStatementsAndConnectionsCostNoAttempt(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	run(t, open(t, db.URL), everyKind(), relay.Config{ListenDSN: db.URL})
	killer := direct(t, db.URL) // a pooler could give it a connection that it has just killed
	end := time.Now().Add(time.Second)
	killed, cancelled := 0, 0
	disturbed(t, db, relaytest.Times(200, 500), func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for time.Now().Before(end) || killed < 20 && time.Now().Before(end.Add(20*time.Second)) { // longer on a busy machine
			<-tick.C
			// A cancelled statement of a handler is the handler's failure, and what ends a run or follows the probe checks the
			// constraints that it deferred; so only the relay's other statements are.
			victim := `FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '/* outbox: %' AND query NOT LIKE '/* outbox: probe%'
				AND query NOT LIKE '/* outbox: end a claim%'`
			if rand.IntN(2) == 0 {
				killed += killer.Int(t, `SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid `+victim+` ORDER BY random() LIMIT 1) v`)
			} else {
				cancelled += killer.Int(t, `SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid `+victim+` AND state = 'active' ORDER BY random() LIMIT 1) v`)
			}
		}
	})
	t.Logf("%d connections terminated, %d statements cancelled", killed, cancelled)
	if killed < 20 {
		t.Error("too few connections were terminated to show anything")
	}
}

// role is a login of the test's own with settings, as a DBA gives it to an app; app is a pool of it.
func role(t testing.TB, with string, settings ...string) (owner, app *database) {
	t.Helper()
	owner = newDatabase(t)
	u, err := url.Parse(owner.URL)
	if err != nil {
		t.Fatal(err)
	}
	name := "app_of" + strings.ReplaceAll(u.Path, "/", "_")
	owner.Do(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'of the test' `+with)
	t.Cleanup(func() { owner.Do(t, `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	owner.Do(t, strings.ReplaceAll(`GRANT USAGE ON SCHEMA outbox TO app; GRANT ALL ON ALL TABLES IN SCHEMA outbox, public TO app;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO app`, "TO app", "TO "+name))
	for _, setting := range settings {
		owner.Do(t, `ALTER ROLE `+name+` SET `+setting)
	}
	u.User = url.UserPassword(name, "of the test")
	return owner, open(t, u.String())
}

// F39: settings that a DBA may give the role.
func testTimeoutsOfTheRole(t *testing.T) {
	owner, app := role(t, "", "statement_timeout = '1s'", "lock_timeout = '1s'",
		"idle_in_transaction_session_timeout = '1s'", "idle_session_timeout = '1s'")
	reg := everyKind()
	slow := outbox.NewTaskType[payload]("SLOW")
	handlers.Tx(reg, slow, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		<-time.After(1500 * time.Millisecond) // idle in its transaction
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(1.5)`)
		return err
	})
	r := run(t, app, reg, relay.Config{ListenDSN: app.URL})
	owner.Enqueue(t, "SLOW", 3)
	disturbed(t, owner, 150, func() {})
	for range 2 { // in which all connections are idle for long
		<-time.After(1300 * time.Millisecond)
		owner.Enqueue(t, "TX", 1)
		owner.Emptied(t, 20*time.Second)
	}
	if n := owner.Int(t, `SELECT count(*) FROM effect WHERE attempt = 1`); n != 302 {
		t.Errorf("%d effects in the first attempt, want 302", n)
	}
	if n := r.Log.Count(outageBegins); n > 0 {
		t.Errorf("%d outages were logged, want none", n)
	}
}

// F39, for a setting that PostgreSQL has from version 17 on: it ends a transaction and its connection, whatever they do.
func TestATransactionTimeoutOfTheRoleEndsNoHandler(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	var settings []string
	if open(t, pgtest.Server(t).URL()).Text(t, `SELECT current_setting('transaction_timeout', true)`) != "" {
		settings = []string{"transaction_timeout = '1s'"}
	}
	owner, app := role(t, "", settings...)
	reg := handlers.New()
	slow := func(ctx context.Context, tx outbox.Tx, taskID int64, attempt int) error {
		_, err := tx.ExecContext(ctx, `WITH s AS MATERIALIZED (SELECT pg_sleep(1.2))
			INSERT INTO effect (task_id, attempt) SELECT $1, $2 FROM s`, taskID, attempt)
		return err
	}
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return slow(ctx, tx, task.ID, task.Attempt)
	})
	handlers.Batch(reg, typeBatch, 2, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		return slow(ctx, tx, tasks[0].ID, tasks[0].Attempt)
	})
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error { return slow(ctx, tx, task.ID, task.Attempt) })
	})
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		owner.Enqueue(t, kind, 1)
	}
	run(t, app, reg, relay.Config{})
	owner.Emptied(t, 30*time.Second)
	if got := owner.Text(t, `SELECT string_agg(attempt::text, ' ') FROM effect`); got != "1 1 1" {
		t.Errorf("the attempts with an effect are %q, want 1 1 1\n%s", got, owner.Dump(t))
	}
}

// F44.
func TestARelayWorksWhereTransactionsAreSerializableByDefault(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner, app := role(t, "", "default_transaction_isolation = serializable")
	other := open(t, app.URL)
	logs := []*records{
		run(t, app, everyKind(), relay.Config{ListenDSN: app.URL}).Log,
		run(t, other, everyKind(), relay.Config{Order: relay.Random}).Log,
	}
	disturbed(t, owner, 150, func() {})
	for _, log := range logs {
		if n := log.Count(outageBegins); n > 0 {
			t.Errorf("%d outages were logged, want none", n)
		}
	}
}

// C11: twenty workers and the relay's own connections share what is left of six.
func TestWithTooFewConnectionsARelayGoesOnSlowly(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	owner, app := role(t, "CONNECTION LIMIT 6")
	r := run(t, app, everyKind(), relay.Config{Workers: 20, ListenDSN: app.URL})
	disturbed(t, owner, 400, func() {})
	if n := r.Log.Count("fewer work for now"); n != 1 {
		t.Errorf("it was logged %d times that there are too few connections, want 1", n)
	}
	if n := r.Log.Count(outageBegins); n > 0 {
		t.Errorf("%d outages were logged, want none", n)
	}
}

// F27: as on a primary that became a standby.
func TestAReadOnlyServerIsAnOutageThatEnds(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	app := open(t, db.URL)
	r := run(t, app, everyKind(), relay.Config{PollInterval: 100 * time.Millisecond})
	disturbed(t, db, 200, func() {
		eventually(t, 20*time.Second, "the relay works", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) < 500 })
		db.Do(t, `ALTER SYSTEM SET default_transaction_read_only = on`)
		db.Do(t, `SELECT pg_reload_conf()`)
		eventually(t, 20*time.Second, "the relay says so", func() bool { return r.Log.Count(outageBegins) > 0 })
		db.Do(t, `ALTER SYSTEM RESET default_transaction_read_only`) // is no transaction's write
		db.Do(t, `SELECT pg_reload_conf()`)
	})
	// Each backend takes the setting over when it likes, so it may begin and end a few times.
	if begins, ends := r.Log.Count(outageBegins), r.Log.Count(outageEnds); begins != ends || begins > 5 {
		t.Errorf("%d outages were logged to begin and %d to end, want 1 or a few", begins, ends)
	}
}

func TestRunWaitsForAServerThatIsNotThereYet(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	db.Enqueue(t, "TX", 10)
	if err := server.Stop("fast"); err != nil {
		t.Fatal(err)
	}
	r := run(t, open(t, db.URL), everyKind(), relay.Config{})
	eventually(t, 10*time.Second, "the relay says that there is no server", func() bool { return r.Log.Count(outageBegins) == 1 })
	if err := server.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	db.reachable(t)
	db.Emptied(t, 20*time.Second)
	if begins, ends := r.Log.Count(outageBegins), r.Log.Count(outageEnds); begins != 1 || ends != 1 {
		t.Errorf("%d outages were logged to begin and %d to end, want 1", begins, ends)
	}
}
