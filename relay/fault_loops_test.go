package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/invariants"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// longestRest is how long a loop, or a part of it, may rest after a failure.
const longestRest = 10 * time.Second

// faultyLoop is a loop of the relay's, the work that it finds, and what must come of it.
type faultyLoop struct {
	name  string
	job   string       // of maintenance
	first func(*loops) // before setup
	setup string
	begin func(*loops) // after setup
	pass  func(context.Context, *loops) (rest time.Duration, err error)
	state string // a query for what is compared with what a pass without faults leaves
	want  string // what it says then, where no other test checks it
	once  bool   // there is one pass only: it tries again by itself
}

func upkeepJob(name string) func(context.Context, *loops) (time.Duration, error) {
	return func(ctx context.Context, l *loops) (time.Duration, error) { return l.Upkeep(ctx, name) }
}

func pass(f func(*loops, context.Context) error) func(context.Context, *loops) (time.Duration, error) {
	return func(ctx context.Context, l *loops) (time.Duration, error) { return 0, f(l, ctx) }
}

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

const aBucket = `INSERT INTO outbox.task_type (task_type, rate, rate_per)
	VALUES ('TX', 1000, 3600000000); INSERT INTO outbox.bucket (task_type, emptied_at)
	VALUES ('TX', now() - %s * interval '3.6 seconds');`

const tokensNow = `SELECT (extract(epoch FROM clock_timestamp() - emptied_at) / 3.6 <= %d)::text FROM outbox.bucket`

// past is a schedule's next_at as it is when two firings were missed. Its timing is as this test's
// relay has it.
const past = `UPDATE outbox.schedule SET next_at = timestamptz '0001-01-01 00:00:00+00' + floor(extract(epoch
	FROM now() - timestamptz '0001-01-01 00:00:00+00') / 3600000) * interval '1000 hours' - interval '1000 hours'`

func dead(relayID, alive string) string {
	return `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('` + relayID +
		`', 'host', 1, now() + interval '` + alive + `', '{}');`
}

var faultyLoops = []faultyLoop{
	{name: "heartbeat", pass: pass((*loops).Beat), state: `SELECT count(*) FROM outbox.relay
		WHERE alive_until > clock_timestamp() + interval '3 seconds'`},
	{name: "take over", pass: upkeepJob("take over"), state: tasksNow,
		setup: dead(deadRelay, "-1 second") + dead(liveRelay, "1 hour") + `
		INSERT INTO outbox.task (task_type, payload, state, attempt, relay_id, lease_token, leased_until)
		SELECT 'LEASED', to_jsonb(n), 'leased', 1, CASE n WHEN 1 THEN '` + deadRelay + `'
		WHEN 2 THEN '` + newRelay + `' ELSE '` + liveRelay + `' END::uuid, '` + someToken + `',
		       CASE n WHEN 3 THEN now() - interval '1 second' END FROM generate_series(1, 4) n`},
	{name: "take tokens", setup: fmt.Sprintf(aBucket, "100"), state: fmt.Sprintf(tokensNow, 91),
		pass: func(ctx context.Context, l *loops) (time.Duration, error) {
			got, err := l.Take(ctx, 10)
			if err == nil && got != 10 {
				err = fmt.Errorf("%d tokens, want 10", got)
			}
			return 0, err
		}},
	{name: "reap", pass: upkeepJob("reap"), setup: dead(deadRelay, "-2 hours") + dead(liveRelay, "1 hour") + `
		UPDATE outbox.relay SET taken_over_at = now() - interval '2 hours' WHERE alive_until < now();
		INSERT INTO outbox.running (task_id, token, relay_id)
			SELECT -n, gen_random_uuid(), CASE n WHEN 1 THEN '` + deadRelay + `' ELSE '` + liveRelay + `' END::uuid
			  FROM generate_series(1, 3) n;
		INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE VALUES (-3, 'TX')`,
		state: `SELECT concat((SELECT string_agg(task_id::text, ' ')
			FROM outbox.running), ' ', (SELECT string_agg(relay_id::text, ' ') FROM outbox.relay WHERE host = 'host'))`,
		want: `-3 ` + liveRelay},
	{name: "sweep keys", pass: upkeepJob("sweep keys"), setup: `INSERT INTO outbox.task (task_type,
		unique_key) SELECT 'TX', n::text FROM generate_series(1, 6) n; DELETE FROM outbox.task WHERE unique_key::int > 2`,
		state: `SELECT string_agg(key, ' ' ORDER BY key) FROM outbox.unique_key`},
	{name: "fold", job: "fold", pass: upkeepJob("maintain"), setup: `INSERT INTO outbox.task (task_type) SELECT 'TX'
		FROM generate_series(1, 3); INSERT INTO outbox.task (task_type) VALUES ('OTHER'); DELETE FROM outbox.task
		WHERE task_type = 'OTHER'`,
		state: `SELECT concat((SELECT count(*) FROM outbox.counter_log), (SELECT string_agg(format(' %s %s %s %s', task_type,
			kind, tasks, arrived), ',' ORDER BY task_type, kind) FROM outbox.counter))`},
	{name: "sample", job: "sample", pass: upkeepJob("maintain"), setup: `INSERT INTO outbox.task (task_type) SELECT 'TX'
		FROM generate_series(1, 3);
		INSERT INTO outbox.sample SELECT now() - n * interval '20 hours', 1, 1, 1, 1, 1, 1, 1, 1, 'TX'
		FROM generate_series(1, 3) n`,
		state: `SELECT string_agg(format('%s %s', task_type, ready), ', ' ORDER BY at, task_type) FROM outbox.sample`},
	{name: "promote scheduled", pass: pass((*loops).PollOnce), state: tasksNow,
		setup: `INSERT INTO outbox.task (task_type, payload, state, attempt, run_at)
		SELECT 'TX', to_jsonb(n), 'scheduled', n, now() + (n - 3) * interval '1 hour' FROM generate_series(1, 4) n`},
	{name: "promote heads",
		pass: pass((*loops).PollOnce), state: `SELECT concat((` + tasksNow + `), (SELECT count(*) FROM outbox.headless_key))`,
		setup: `INSERT INTO outbox.task (task_type, payload, ordering_key) SELECT 'TX', to_jsonb(n), (n % 3)::text
			FROM generate_series(1, 9) n; DELETE FROM outbox.promote_lock`},
	{name: "register schedules", pass: pass((*loops).Fire), state: `SELECT string_agg(format('%s %s', name, next_at), ' ')
		FROM outbox.schedule`},
	{name: "fire", first: register, setup: past, pass: pass((*loops).Fire), state: firedNow},
	{name: "journal notes", pass: pass((*loops).WriteNotes), begin: func(l *loops) { l.Note(1, 2, someToken) },
		setup: `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, '` + someToken + `', '` + liveRelay +
			`' FROM generate_series(1, 3) n;` + dead(liveRelay, "1 hour"),
		state: `SELECT string_agg(format('%s %s', task_id, lost_connection), ', ' ORDER BY task_id) FROM outbox.running`},
	{name: "sign off", once: true, pass: pass((*loops).SignOff),
		begin: func(l *loops) { _ = l.Beat(context.Background()) }, state: `SELECT count(*) FROM outbox.relay`},
}

const firedNow = `SELECT concat((SELECT string_agg(run_at::text, ', ' ORDER BY run_at, task_id)
	FROM outbox.task), ' and then ', (SELECT next_at FROM outbox.schedule))`

func register(l *loops) { _ = l.Fire(context.Background()) }

// loopsUnderTest is a database with a driver that fails.
type loopsUnderTest struct {
	db     *database
	pool   *database
	faulty *faulty
}

// try does the loop's work with one failure, and returns the calls that were made.
func (u *loopsUnderTest) try(t *testing.T, c faultyLoop, nth int, what fault, want string) (state string,
	calls []string) {
	t.Helper()
	name := fmt.Sprintf("%s, call %d: %v", c.name, nth, what)
	reg := handlers.New()
	registerTx(reg, typeTx, txEffect, handlers.Rate(1000, time.Hour))
	log := &records{}
	r, err := relay.New(u.pool.DB,
		reg, relay.Config{DeadRetention: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil)),
			Schedules: relay.Schedules{{Name: "tick", Timing: relay.Every(1000 * time.Hour),
				Task: relaytest.TypeFired.New(payload{}), CatchUp: relay.CatchUpAll}}})
	if err != nil {
		t.Fatal(err)
	}
	l := newLoops(r, c.job)
	u.db.Do(t, emptyAll)
	if c.first != nil {
		c.first(l)
	}
	u.db.Do(t, c.setup)
	if c.begin != nil {
		c.begin(l)
	}
	l.Close()
	u.faulty.armNth(nth, what)
	passes, tooSlow := 0, 0
	for passes = 1; ; passes++ {
		rest, passErr := c.pass(t.Context(), l)
		if errors.Is(passErr, context.DeadlineExceeded) { // a busy machine
			tooSlow++
		}
		if passErr != nil { // the server may not know yet that the connection is closed, and hold its locks
			eventually(t, time.Minute, name+": the failed transaction has ended", func() bool {
				return u.db.Int(t, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND state LIKE 'idle in transaction%'`) == 0
			})
		}
		state = u.db.Text(t, c.state)
		if want != "" && rest > longestRest && state != want {
			t.Errorf("%s: after an error it rests for %v, want at most %v", name, rest, longestRest)
		}
		if want == "" || state == want && passErr == nil || passes-tooSlow == 3 || passes == 60 || c.once {
			break
		}
		u.db.Do(t, `UPDATE outbox.maintenance SET due_at = clock_timestamp() - interval '1 second'
			WHERE due_at < clock_timestamp() + $1 * interval '1 second'`, longestRest.Seconds())
	}
	calls = u.faulty.calls()
	if !u.faulty.fired() {
		t.Errorf("%s: it did not fail", name)
	}
	if want != "" && state != want {
		t.Errorf("%s: after %d passes\n%s\nwant\n%s\ncalls: %s\n%s", name, passes, state, want, strings.Join(calls, "; "),
			log.Tail())
	}
	if want != "" && !c.once {
		eventually(t, time.Minute, name+": a further pass", func() bool { // in the time that a pass has
			_, err := c.pass(t.Context(), l)
			return err == nil
		})
		if again := u.db.Text(t, c.state); again != want {
			t.Errorf("%s: a further pass makes it\n%s\nfrom\n%s", name, again, want)
		}
	}
	if n := u.db.Int(t, invariants.Miscounted); n != 0 {
		t.Errorf("%s: I9: the counts are not those of the rows", name)
	}
	l.Close()
	return state, calls
}

// Every eighth driver call of each loop that does not come with a task fails once, with
// OUTBOX_TEST_LONG=1 each call in each way. The loop's next passes do what is to be done, once:
// nothing is lost or doubled, no attempt is counted, and no part of it rests for long.
func TestEachLoopGoesOnAfterAnyFailureOfAnyOfItsCalls(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	u := &loopsUnderTest{db: newDatabase(t, "postgres")}
	u.faulty = &faulty{}
	u.pool = u.db.through(t, u.faulty.wrap)
	u.pool.SetMaxIdleConns(-1) // each try connects
	type todo struct {
		loop faultyLoop
		nth  int
		call string
		fault
		want string
	}
	var all []todo
	for _, c := range faultyLoops {
		want, calls := u.try(t, c, 0, fault{}, "")
		if want == "" || c.want != "" && want != c.want || len(calls) < 2 || calls[0] != "connect" {
			t.Fatalf("%s: a pass without faults leaves %q after the calls %q", c.name, want, calls)
		}
		for i, call := range calls {
			t.Logf("%s, call %d: %s", c.name, i+1, call)
			ways := faults
			if !relaytest.Long { // each time another one
				ways = faults[len(all)%len(faults):][:1]
			}
			for _, f := range ways {
				all = append(all, todo{c, i + 1, call, f, want})
			}
			if call == "connect" {
				all = append(all, todo{c, i + 1, call, refusedConnection, want})
			}
		}
	}
	for _, one := range relaytest.Part(all, len(all)/16) {
		u.try(t, one.loop, one.nth, one.fault, one.want)
	}
	u.db.Do(t, emptyAll) // as some of what is set up never arrived
}
