package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// The heartbeat cannot get through for as long as leases last.
func testLostHeartbeat(t *testing.T) {
	db := newDatabase(t)
	begun, causes := make(chan struct{}, 1), make(chan error, 1)
	var first atomic.Bool
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if !first.CompareAndSwap(false, true) {
			return leasedEffect(ctx, task)
		}
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), relay.Config{Workers: 1, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	<-begun
	release := hold(t, db, `LOCK TABLE outbox.relay IN EXCLUSIVE MODE`)
	locked := time.Now()
	if cause := <-causes; !errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("the handler's context ended by %v, want ErrLeaseLost", cause)
	}
	if after := time.Since(locked); after < 6*time.Second || relaytest.Timing && after > 13*time.Second {
		t.Errorf("it ended %v after the last heartbeat at most 3 s before; leases last 10 s", after)
	}
	eventually(t, 10*time.Second, "the task is handed back without an attempt", func() bool {
		return db.taskState(t) == "ready 0"
	})
	release()
	db.Emptied(t, 15*time.Second)
	db.OnceEach(t, 1)
	db.want(t, 1, "done in attempt", `SELECT attempt FROM effect`)
}

// What mostly waits for a heartbeat, a timeout or a poll, and measures how long: all at once, beside nothing else.
func TestGuaranteesInTime(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){
		"without heartbeats a lease that ran out is taken over from a living process": testWithoutHeartbeatsALeaseIsTakenOver,
		"a late heartbeat revives a lease that nobody took":                           testLateHeartbeat,
	}
	if relaytest.CI {
		tests["handlers end when heartbeats do not get through"] = testLostHeartbeat
		tests["RunOnce takes over the tasks of dead relays"] = testRunOnceTakesOver
		tests["no interleaving of a holder and a rescuer breaks the rule of the token"] = testEveryInterleaving
	}
	if relaytest.Long {
		tests["without notifications a poll finds the task"] = testPollFindsTheTask
		tests["timeouts of the role do not stop a relay"] = testTimeoutsOfTheRole
	}
	relaytest.Together(t, tests)
}

// staleEnds are how the handler of a lost lease may end.
var staleEnds = []func(ctx context.Context, task *outbox.Task[payload]) error{
	leasedEffect,
	func(context.Context, *outbox.Task[payload]) error { return nil },
	func(context.Context, *outbox.Task[payload]) error { return errors.New("stale") },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Dead(errors.New("stale")) },
	func(context.Context, *outbox.Task[payload]) error { return handlers.Snooze(time.Hour) },
}

// F6, F7, I4: a relay that lives after all loses the leases that an operator handed back. Whatever its
// handlers then do changes nothing, while another relay has run half of the tasks and runs the others.
func TestHandBackTakesTheLeasesOfARelayAtOnce(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	tasks := 2 * len(staleEnds)
	causes, begun := make(chan error, tasks), make(chan struct{}, tasks)
	var lost atomic.Int32
	end, release := make(chan struct{}), make(chan struct{})
	stale := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-end
		err := staleEnds[task.Payload.N%len(staleEnds)](context.WithoutCancel(ctx), task)
		if errors.Is(err, outbox.ErrLeaseLost) {
			lost.Add(1)
		}
		return err
	}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", tasks)
	for range tasks {
		<-begun
	}
	id := db.Text(t, `SELECT relay_id FROM outbox.relay`)
	db.Do(t, dead(someUUID, "4 minutes"))
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token)
		VALUES ('OTHER', 'leased', 1, $1, $1)`, someUUID)
	at := time.Now()
	if n, err := relaytest.Admin(t, db.DB).HandBack(t.Context(), strings.ToUpper(id)); n != int64(tasks) || err != nil {
		t.Fatalf("HandBack: %d, %v; want %d", n, err, tasks)
	}
	for range tasks {
		if cause := <-causes; !errors.Is(cause, outbox.ErrLeaseLost) {
			t.Errorf("a handler's context ended by %v, want ErrLeaseLost", cause)
		}
	}
	if d := time.Since(at); relaytest.Timing && d > 6*time.Second {
		t.Errorf("they ended after %v, want a heartbeat", d)
	}
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if task.Payload.N/len(staleEnds)%2 == 1 {
			<-release
		}
		return leasedEffect(ctx, task)
	}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
	db.becomes(t, 20*time.Second, tasks/2, "another relay has run half of them", `SELECT count(*) FROM effect`)
	db.becomes(t, 20*time.Second, tasks/2+1, "and runs the others", `SELECT count(*) FROM outbox.task
		WHERE state = 'leased'`)
	before := db.tasks(t)
	close(end)
	stale.Stop()
	if after := db.tasks(t); after != before || int(lost.Load()) != tasks/len(staleEnds) {
		t.Errorf("%d stale completions got ErrLeaseLost; the tasks were\n%s\nand are\n%s", lost.Load(), before, after)
	}
	stale.Log.Want(t, tasks, "level=WARN msg=\"outbox: a lease was ")
	close(release)
	db.becomes(t, 20*time.Second, tasks, "they are done", `SELECT count(*) FROM effect`)
	db.OnceEach(t, tasks)
	db.want(t, 0, "effects are not of the second attempt", `SELECT count(*) FROM effect WHERE attempt <> 2`)
	db.becomes(t, 20*time.Second, "leased 1", "the other relay's", `SELECT string_agg(state || ' ' || attempt, ', ')
		FROM outbox.task`)
}

// tasks is all there is in the table of tasks.
func (db *database) tasks(t testing.TB) string {
	t.Helper()
	return db.Text(t, `SELECT json_agg(t ORDER BY task_id) FROM outbox.task t`)
}

// "Work that survives a database restart": the lease and the result do, and the run is the only
// one.
func TestALeasedRunSurvivesARestartOfTheServer(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	server := pgtest.Local(t, nil)
	db := adopt(t, server.URL())
	begun, restarted := make(chan struct{}, 10), make(chan struct{})
	run(t, open(t, db.URL), leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-restarted
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if task.Payload.N%2 == 0 {
			return leasedEffect(ctx, task)
		}
		return nil
	}, handlers.Timeout(time.Minute)), relay.Config{Workers: 4, PollInterval: fastPoll.PollInterval})
	db.Enqueue(t, "LEASED", 4)
	for range 4 {
		<-begun
	}
	before := db.tasks(t)
	for _, mode := range []string{"fast", "immediate"} {
		if err := errors.Join(server.Stop(mode), server.Start(context.Background())); err != nil {
			t.Fatal(err)
		}
		db.reachable(t)
	}
	if after := db.tasks(t); after != before {
		t.Errorf("the leases changed: %s, before %s", after, before)
	}
	close(restarted)
	db.Emptied(t, 20*time.Second)
	if got := db.Text(t, `SELECT string_agg(attempt::text, ' ') FROM effect`); got != "1 1" || len(begun) != 0 {
		t.Errorf("done in attempts %s, and %d further runs; want 1 1 and none", got, len(begun))
	}
}

// snapshot reads all rows of the outbox and the effects. restore puts them back beside the relays,
// as a failover to a standby that has no more does, or a restore in place: each row is as it was, a
// relay's row is older than its latest heartbeat, and each relay is in its process as before.
func (db *database) snapshot(t *testing.T) (restore func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	must(err)
	defer func() { _ = tx.Rollback() }()
	var tables []string
	must(tx.QueryRow(`SELECT array_agg(oid::regclass::text ORDER BY relname) FROM pg_class WHERE relkind = 'r'
		AND (relnamespace = 'outbox'::regnamespace OR oid = 'effect'::regclass) AND relname NOT IN ('migration', 'origin')`).
		Scan(pq.Array(&tables)))
	rows := make([]string, len(tables))
	for i, table := range tables {
		must(tx.QueryRow(`SELECT COALESCE(json_agg(r), '[]') FROM ` + table + ` r`).Scan(&rows[i]))
	}
	put := func() error {
		tx, err := db.BeginTx(context.Background(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec(`SET LOCAL session_replication_role = replica; LOCK TABLE ` + strings.Join(tables, ", ") +
			` IN EXCLUSIVE MODE`)
		for i, table := range tables {
			if err != nil {
				return err
			}
			if _, err = tx.Exec(`DELETE FROM ` + table); err == nil {
				_, err = tx.Exec(`INSERT INTO `+table+` OVERRIDING SYSTEM VALUE
					SELECT * FROM json_populate_recordset(NULL::`+table+`, $1)`, rows[i])
			}
		}
		if err == nil { // as there was a heartbeat since
			_, err = tx.Exec(`UPDATE outbox.relay SET alive_until = alive_until - interval '1 second'`)
		}
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	return func() {
		t.Helper()
		var err error
		relaytest.Eventually(t, time.Minute, "the rows are back", func() bool { err = put(); return err == nil })
		must(err)
	}
}

// The relay has finished the tasks, and the rows say that it runs them. They run again, once,
// without an attempt, though their leases last for an hour.
func TestLeasedTasksWhoseResultsAreLostRunAgainWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	begun, release := make(chan struct{}, 20), make(chan struct{})
	var seen noted[string]
	reg, hour := handlers.New(), handlers.Timeout(time.Hour)
	for name, opts := range map[string][]handlers.Option{
		"PLAIN": {hour}, "SLOTS": {hour, handlers.MaxRunning(1)}, "ORDERED": {hour}, "UNIQUE": {hour},
		"ALONE": {handlers.NoHeartbeat(time.Hour)}, "KEPT": {hour, handlers.Retention(time.Hour)},
		"FAILS": {hour, retrySoon()},
	} {
		relaytest.Register(reg, "leased", name, 1, func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			task := tasks[0]
			begun <- struct{}{}
			<-release
			seen.add(fmt.Sprintf("%s %d, attempt %d", name, task.Payload.N, task.Attempt))
			if name == "FAILS" && task.Attempt == 1 {
				return errAlways
			}
			return task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, task.Attempt) })
		}, opts...)
	}
	r := run(t, db, reg, relay.Config{Workers: 12, PollInterval: 50 * time.Millisecond})
	db.Enqueue(t, "PLAIN", 3)
	db.Enqueue(t, "SLOTS", 2)
	db.Enqueue(t, "ALONE", 1)
	db.Enqueue(t, "KEPT", 1)
	db.Enqueue(t, "FAILS", 1)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, ordering_key) SELECT 'ORDERED', jsonb_build_object('n', n), 'k'
		FROM generate_series(1, 2) n`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, unique_until_done)
		VALUES ('UNIQUE', '{"n": 1}', 'k', true)`)
	for range 9 {
		<-begun
	}
	restore := db.snapshot(t)
	close(release)
	db.Emptied(t, time.Minute)
	first := seen.list()
	restore()
	db.wantRows(t, 9, `outbox.task WHERE state = 'leased' AND leased_until > now() + interval '50 minutes'`)
	db.Emptied(t, time.Minute)
	want := slices.Sorted(slices.Values(slices.Concat(first, first)))
	if got := slices.Sorted(slices.Values(seen.list())); !slices.Equal(got, want) {
		t.Errorf("calls: %q, want each twice: %q", got, want)
	}
	db.OnceEach(t, 11)
	db.wantText(t, "2", `SELECT string_agg(DISTINCT attempt::text, ' ') FROM effect WHERE attempt > 1`) // of FAILS
	db.want(t, 1, "kept", `SELECT count(*) FROM outbox.done_task WHERE attempt = 1`)
	if got := db.keyed(t, "UNIQUE", 1, outbox.Unique("k")); got.Outcome != outbox.OutcomeCreated {
		t.Errorf("an Enqueue with the unique key: %v", got.Outcome)
	}
	r.Log.Want(t, 1, "the database has lost their results")
	r.Log.Want(t, 0, "is dead")
}

// comparisons counts those of the relay behind the proxy that are over with its leases.
func comparisons(p *proxy.Proxy) (n *atomic.Int32) {
	n = &atomic.Int32{}
	p.Set(&proxy.Trap{Catches: func(statement, _ string) bool { // it sees all, and catches nothing
		if strings.Contains(statement, "/* outbox: compare runs") {
			n.Add(1)
		}
		return false
	}})
	return n
}

// compared waits until the relay has compared its leases, as its row is older than its heartbeats.
func (db *database) compared(t *testing.T, comparisons *atomic.Int32) {
	t.Helper()
	before := comparisons.Load()
	db.Do(t, `UPDATE outbox.relay SET alive_until = alive_until - interval '1 day'`)
	eventually(t, time.Minute, "the relay compares its leases", func() bool { return comparisons.Load() > before })
}

// What a relay is about to hold, or has not written yet, is its own: the rows say that it is
// leased, while no handler runs.
func TestAComparisonOfLeasesFreesNoneThatIsBeingClaimedOrWritten(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){}
	result, failure := proxy.Statement("outbox: complete leased tasks"), proxy.Statement("outbox: end a lease")
	slots := []handlers.Option{handlers.MaxRunning(1)}
	for name, c := range map[string]struct {
		catches func(statement, before string) bool
		how     proxy.How
		opts    []handlers.Option
	}{
		"the claim's COMMIT is answered late, and lost": {proxy.Commit("outbox: lease"), proxy.LoseReply, nil},
		"so is that of a claim of slots":                {proxy.Commit("outbox: lease"), proxy.LoseReply, slots},
		"the result is on its way, and does not come":   {result, proxy.LoseRequest, nil},
		"the failure is on its way, and does not come":  {failure, proxy.LoseRequest, nil},
		"Complete is on its way":                        {proxy.Statement("INSERT INTO effect"), proxy.LoseRequest, nil},
		"the COMMIT of Complete is answered late":       {proxy.Commit("INSERT INTO effect"), proxy.LoseReply, nil},
	} {
		tests[name] = func(t *testing.T) {
			db := newDatabase(t, "postgres")
			p, pool := db.proxied(t, "postgres")
			var seen noted[string]
			reg := leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				seen.add(fmt.Sprint("attempt ", task.Attempt))
				switch {
				case strings.Contains(name, "result"):
					return nil
				case strings.Contains(name, "failure") && task.Attempt == 1:
					return errAlways
				}
				return leasedEffect(ctx, task)
			}, append(c.opts, retrySoon())...)
			held, hold := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(hold) })
			defer release()
			p.Set(&proxy.Trap{Catches: c.catches, How: c.how, Then: func() { close(held); <-hold }})
			comparisons := comparisons(p)
			r := run(t, pool, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			db.Enqueue(t, "LEASED", 1)
			<-held
			db.compared(t, comparisons)
			release()
			db.Emptied(t, time.Minute)
			r.Log.Want(t, 0, "the database has lost their results") // none was freed
			want := "attempt 1"
			if strings.Contains(name, "failure") || strings.Contains(name, "Complete is on") {
				want = "attempt 1 attempt 2"
			}
			if got := strings.Join(seen.list(), " "); got != want {
				t.Errorf("calls: %s, want %s", got, want)
			}
		}
	}
	relaytest.Together(t, needs.Few(t, tests, "so is that of a claim of slots",
		"the result is on its way, and does not come", "the COMMIT of Complete is answered late"))
}

// A Tx task whose commit the database has lost is there again, and so is its run in the journal. To
// another relay that run may go on for as long as its relay lives, and be the task's only attempt.
func TestARunThatIsOverInALivingRelayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	registerTx(reg, typeTx, txEffect, handlers.MaxAttempts(1))
	r, err := relay.New(db.DB, reg, relay.Config{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	living := newLoops(r, "")
	defer living.Close()
	db.Enqueue(t, "TX", 1)
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id)
		SELECT 1, gen_random_uuid(), relay_id FROM outbox.relay`)
	living.done(t, "compare")
	db.wantRows(t, 0, `outbox.running`)
	once(t, db, reg, relay.Config{})
	db.wantText(t, "1 1", `SELECT concat_ws(' ', task_id, attempt) FROM effect`)
}
