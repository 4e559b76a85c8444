package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

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
	log := &relaytest.Records{}
	run(t, app, everyKind(), relay.Config{Workers: 4, ListenDSN: app.URL,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	killer := direct(t, db.URL) // a pooler could give it a connection that it has just killed
	n := 0
	for range relaytest.Times(8, 20) {
		for i, kill := range kills {
			eventually(t, 20*time.Second, fmt.Sprint("kill ", i), func() bool {
				db.enqueueEach(t, 2)
				n += 2
				return killer.Int(t, sessions+kill) > 0
			})
		}
	}
	db.Emptied(t, 5*time.Minute)
	db.OnceEach(t, 2*n)
	late := 0
	for line := range strings.Lines(log.String()) {
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
	pooled, err := pgtest.PoolURL(relaytest.DriverName(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
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
