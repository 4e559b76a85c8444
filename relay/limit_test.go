package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// inside counts the calls that run, and notes the most.
type inside struct{ now, most atomic.Int64 }

func (i *inside) enter() {
	now := i.now.Add(1)
	for most := i.most.Load(); now > most && !i.most.CompareAndSwap(most, now); most = i.most.Load() {
	}
}

func TestALimitOfOneRelayHolds(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		for name, limit := range map[string]handlers.Option{"relay": handlers.MaxRunningPerRelay(2),
			"total": handlers.MaxRunning(2)} {
			if !relaytest.Long && (kind == "TX") != (name == "relay") { // each kind with one of them
				continue
			}
			t.Run(kind+" "+name, func(t *testing.T) {
				db, reg := newDatabase(t), handlers.New()
				db.Enqueue(t, kind, 60)
				var running inside
				full, markFull := context.WithCancel(t.Context()) // full ends once the limit is reached
				defer markFull()
				call := func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
					if len(tasks) > 1 {
						return errAlways // they run one by one, each with a slot
					}
					running.enter()
					defer running.now.Add(-1)
					if running.now.Load() >= 2 {
						markFull()
					}
					select {
					case <-full.Done():
					case <-ctx.Done():
						return ctx.Err()
					}
					<-time.After(5 * time.Millisecond)
					return nil
				}
				relaytest.Register(reg, strings.ToLower(kind), kind, 100, call, limit)
				other := newProbe(reg, "OTHER")
				r := run(t, db, reg, relay.Config{Workers: 10})
				other.measure(t, db, 3, time.Millisecond)
				db.Emptied(t, 20*time.Second)
				r.Stop()
				if n := running.most.Load(); n != 2 {
					t.Errorf("at most %d ran at once, want 2", n)
				}
			})
		}
	}
}

// Slots need not be freed by anybody: whatever ends a lease frees them.
func TestASlotIsFreeOnceTheLeaseThatItNamesIsOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for end, free := range map[string]int{
		`DELETE FROM outbox.task`: 1,
		`UPDATE outbox.task SET state = 'scheduled', relay_id = NULL, lease_token = NULL`: 1,
		`UPDATE outbox.task SET lease_token = gen_random_uuid()`:                          1,
		`SELECT 1`: 0,
	} {
		db.Do(t, emptyAll+`INSERT INTO outbox.task_type (task_type, max_running) VALUES ('LEASED', 1);
			INSERT INTO outbox.slot (task_type, slot) VALUES ('LEASED', 1)`)
		db.Do(t, fillSlot, someUUID)
		db.Do(t, end)
		if got := changed(t, db, "", statements["lock slots"], "LEASED", 1, "10000"); got != free {
			t.Errorf("after %s the claim got %d slots, want %d", end, got, free)
		}
	}
}

const fillSlot = `WITH leased AS (
	  INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token) VALUES ('LEASED', 'leased', 1, $1, $1)
	  RETURNING *)
	UPDATE outbox.slot s SET task_id = leased.task_id, lease_token = leased.lease_token FROM leased`

// Another claim fills a slot after this one's snapshot, which shows it free and not the lease that is in it by now.
func TestASlotThatIsFilledWhileAClaimReachesItIsNotFree(t *testing.T) {
	t.Parallel()
	for _, free := range []int{0, 1} {
		t.Run(fmt.Sprint(free, " free"), func(t *testing.T) {
			db := newDatabase(t)
			// A claim has its snapshot, and has seen no slot yet, when it reads the type's limit: there it waits for the gate.
			db.Do(t, `INSERT INTO outbox.task_type (task_type, max_running) VALUES ('LEASED', 1);
				INSERT INTO outbox.slot (task_type, slot) VALUES ('LEASED', 1);
				CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN true;
				END $$;
				ALTER TABLE outbox.task_type RENAME TO limits;
				CREATE VIEW outbox.task_type AS SELECT * FROM outbox.limits WHERE gate()`)
			open := hold(t, db, `SELECT pg_advisory_xact_lock(1)`)
			locked := make(chan int)
			go func() { locked <- changed(t, db, "", statements["lock slots"], "LEASED", 1, "10000") }()
			eventually(t, 20*time.Second, "the claim is at the gate", func() bool { return db.waitsAtAGate(t) })
			if free == 0 {
				db.Do(t, fillSlot, someUUID)
			}
			open()
			if got := <-locked; got != free {
				t.Errorf("the claim got %d slots, want %d", got, free)
			}
		})
	}
}

func TestTheLastRelayThatStartsStoresTheLimits(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	pause(t, db, "TX")
	for i, step := range []struct {
		opts []handlers.Option
		want string
	}{
		{nil, "TX  / 0"},
		{[]handlers.Option{handlers.MaxRunning(5)}, "TX 5 / 5"},
		{[]handlers.Option{handlers.MaxRunning(2), handlers.Rate(10, time.Second)}, "TX 2 10/1000000 5"},
		{[]handlers.Option{handlers.Rate(1, time.Minute)}, "TX 2 1/60000000 5"},
		{nil, "TX 2 1/60000000 5"},
	} {
		reg := handlers.New()
		registerTx(reg, typeTx, txEffect, step.opts...)
		once(t, db, reg, relay.Config{})
		db.want(t, step.want, fmt.Sprint("stored after step ", i), `SELECT string_agg(format('%s %s %s/%s %s', task_type,
			max_running, rate, rate_per,
			(SELECT count(*) FROM outbox.slot s WHERE s.task_type = t.task_type)), ', ' ORDER BY task_type)
			FROM outbox.task_type t`)
	}
}

// A relay that finds no work for its token must not keep it from the others.
func TestTokensThatAreNotUsedAreGivenBack(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	registerTx(reg, typeTx, txEffect, handlers.Rate(20, time.Hour)) // two at once
	for i, step := range []struct{ enqueue, done int }{{1, 1}, {3, 2}, {0, 2}} {
		db.Enqueue(t, "TX", step.enqueue)
		once(t, db, reg, relay.Config{})
		if n := db.Int(t, `SELECT count(*) FROM effect`); n != step.done {
			t.Errorf("step %d: %d tasks have run, want %d", i, n, step.done)
		}
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`) // one token's time
	for range 2 {
		once(t, db, reg, relay.Config{})
		db.want(t, 3, "tasks have run after one more token", `SELECT count(*) FROM effect`)
	}
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = clock_timestamp() + interval '1 day'`) // the clock was put back
	once(t, db, reg, relay.Config{})
	db.Do(t, `UPDATE outbox.bucket SET emptied_at = emptied_at - interval '3 min'`)
	once(t, db, reg, relay.Config{})
	db.want(t, 4, "tasks have run", `SELECT count(*) FROM effect`)
}

func pause(t testing.TB, db *database, taskType string) {
	t.Helper()
	must(relaytest.Admin(t, db.DB).PauseType(context.Background(), taskType))
}

func resume(t testing.TB, db *database, taskType string) {
	t.Helper()
	must(relaytest.Admin(t, db.DB).ResumeType(context.Background(), taskType))
}

// crowd are task types that only one relay has, one for each of its workers. Their handlers wait
// for each other.
type crowd struct {
	types []string
	in    atomic.Int64
	open  chan struct{}
}

func newCrowd(reg *handlers.Registry, name string, workers int) *crowd {
	c := &crowd{open: make(chan struct{})}
	for i := range workers {
		c.types = append(c.types, fmt.Sprint(name, i))
		handlers.Leased(reg, outbox.NewTaskType[payload](c.types[i]), func(context.Context, *outbox.Task[payload]) error {
			c.in.Add(1)
			<-c.open
			return nil
		})
	}
	return c
}

// start enqueues a task of each type, and waits until all have started. As long as they do not end
// they have all workers: what the relay's polls found before has been claimed then, and it has
// polled since.
func (c *crowd) start(t *testing.T, db *database) {
	t.Helper()
	want := c.in.Load() + int64(len(c.types))
	for _, taskType := range c.types {
		db.Enqueue(t, taskType, 1)
	}
	eventually(t, time.Minute, "tasks of other types run", func() bool { return c.in.Load() == want })
}

// goesOn lets the tasks end, and waits until the relay has run more.
func (c *crowd) goesOn(t *testing.T, db *database) {
	t.Helper()
	close(c.open)
	for range 5 {
		c.start(t, db)
	}
}

func TestAPausedTypeDoesNotStartAndAResumptionWakesTheRelay(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	p, other := newProbe(reg, "TX"), newCrowd(reg, "OTHER", 4)
	r := run(t, db, reg, relay.Config{Workers: 4, PollInterval: time.Minute, ListenDSN: db.URL})
	listening(t, db)
	p.measure(t, db, 3, 10*time.Millisecond)
	pause(t, db, "TX")
	other.start(t, db)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', clock_timestamp() + interval '100 ms')`)
	db.Enqueue(t, "TX", 1)
	other.goesOn(t, db)
	select {
	case <-p.started:
		t.Error("a task of a paused type was started")
	case <-time.After(500 * time.Millisecond):
	}
	resume(t, db, "TX") // the relay would poll only once a minute
	for range 2 {
		select {
		case <-p.started:
		case <-time.After(45 * time.Second):
			t.Fatal("a task of a resumed type was not started")
		}
	}
	r.Log.Want(t, 0, "no relay has a handler")
}

// A wake-up that was sent before the pause, or by hand, names a task of a type that is paused by
// now.
func TestATaskThatCommitsAfterAPauseDoesNotStart(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var started atomic.Int64
	types := []string{"tx", "group", "batch", "leased"} // each named as its kind
	for _, kind := range types {
		registerKind(reg, kind, kind, 10, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
			started.Add(1)
			return nil
		})
	}
	other := newProbe(reg, "OTHER")
	run(t, db, reg, relay.Config{PollInterval: time.Minute, ListenDSN: db.URL})
	listening(t, db)
	for _, taskType := range types {
		commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type) VALUES ($1)`, taskType)
		pause(t, db, taskType)
		commit()
		other.measure(t, db, 1, time.Millisecond)
		for range 5 {
			<-time.After(30 * time.Millisecond) // it is idle in some of them
			db.Do(t, `SELECT pg_notify('outbox', concat_ws(' ', priority, task_id, task_type)) FROM outbox.task
				WHERE task_type = $1`, taskType)
		}
		other.measure(t, db, 1, time.Millisecond)
	}
	db.want(t, len(types), "the tasks of the paused types", `SELECT count(*) FROM outbox.task WHERE task_type <> 'OTHER'
		AND state = 'ready' AND attempt = 0`)
	if n := started.Load(); n != 0 {
		t.Errorf("%d tasks of paused types were started", n)
	}
}

// A group claims its tasks one after the other, and asks each time. A pause may come from elsewhere, or
// from a handler of the group.
func TestAGroupEndsWhereItsTypeIsPaused(t *testing.T) {
	t.Parallel()
	for name, pauses := range map[string]func(*database, *sql.Tx) error{
		"elsewhere": func(db *database, _ *sql.Tx) error {
			return relaytest.Admin(t, db.DB).PauseType(context.Background(), "TX")
		},
		"by its handler": func(db *database, tx *sql.Tx) error {
			return relaytest.Admin(t, db.DB).In(tx).PauseType(context.Background(), "TX")
		},
	} {
		db := newDatabase(t)
		db.Enqueue(t, "TX", 5)
		db.keyed(t, "TX", 0, outbox.Priority(-1)) // so that the relay knows how little a task takes
		calls := 0
		once(t, db, grouped(100, within, func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if calls++; calls == 3 {
				return pauses(db, tx)
			}
			return nil
		}), relay.Config{Workers: 1})
		if calls != 3 {
			t.Errorf("%s: %d tasks were started, want 3 until the pause", name, calls)
		}
		db.want(t, 3, "the other tasks", `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0
			AND attempted_at IS NULL`)
		db.wantRows(t, 0, `outbox.running`)
		resume(t, db, "TX")
		once(t, db, grouped(100, within, nothing), relay.Config{Workers: 1})
		db.wantRows(t, 0, `outbox.task`)
	}
}

// delays are how long tasks waited from their commit to the start of their handler.
type delays []time.Duration

func (d delays) at(quantile float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(int(quantile*float64(len(s))), len(s)-1)]
}

func (d delays) String() string {
	return fmt.Sprintf("p50 %v, p95 %v, p99 %v, most %v of %d", d.at(.5), d.at(.95), d.at(.99), d.at(1), len(d))
}

// probe is a task type whose handlers report their start.
type probe struct {
	taskType string
	started  chan time.Time
}

// newProbe registers a Tx handler for the type, which does nothing else.
func newProbe(reg *handlers.Registry, taskType string) *probe {
	p := &probe{taskType, make(chan time.Time, 1)}
	registerTx(reg, outbox.NewTaskType[payload](taskType), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		p.started <- time.Now()
		return nil
	})
	return p
}

// measure enqueues n tasks by plain SQL, one at a time, with the given pause between them.
func (p *probe) measure(t testing.TB, db *database, n int, pause time.Duration) (out delays) {
	t.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range n {
		<-tick.C
		db.Enqueue(t, p.taskType, 1)
		committed := time.Now()
		select {
		case at := <-p.started:
			out = append(out, max(at.Sub(committed), 0))
		case <-time.After(45 * time.Second): // less than the poll interval of those that must not wait for a poll
			t.Fatalf("a task of type %s did not start within 45 s", p.taskType)
		}
	}
	return out
}

// soon checks that n tasks start, one after the other; with OUTBOX_TEST_TIMING=1, that they start
// within limit, but for one in ten: other load on the machine may delay some of each, and spoil a
// round, but not five.
func (p *probe) soon(t testing.TB, db *database, n int, limit time.Duration) {
	t.Helper()
	quick(t, .9, limit, func() delays { return p.measure(t, db, n, 20*time.Millisecond) })
}

// before checks that the flood of the kind is not done when n tasks of the probe's type have
// started, which came after it.
func (p *probe) before(t testing.TB, db *database, kind string, n int, limit time.Duration) {
	t.Helper()
	p.soon(t, db, n, limit)
	if left := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = $1 AND attempt = 0`, kind); left == 0 {
		t.Error("the other type had to wait for all of the flood")
	}
}

var errAlways = errors.New("it always fails")

// each registers a handler of the kind under its usual type; its results are f's, of a batch those
// for each task.
func each(reg *handlers.Registry, taskType string, f func(ctx context.Context, task *outbox.Task[payload]) error,
	opts ...handlers.Option) {
	relaytest.Register(reg, strings.ToLower(taskType), taskType, 100,
		func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			var errs []error
			for _, task := range tasks {
				errs = append(errs, f(ctx, task))
			}
			return errors.Join(errs...)
		}, opts...)
}

// Promise 5, without ListenDSN: a type that floods the queue and fails does not hold another up,
// nor does one that takes long, of which no task ends here.
func TestAFloodOfFailingTasksDoesNotDelayAnotherType(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		for name, c := range map[string]struct {
			slow         bool
			tasks, calls int64 // begun before the other type's first
			limit        time.Duration
		}{"fails": {false, 10_000, 100, 30 * time.Millisecond}, "is slow": {true, 1000, 9, 100 * time.Millisecond}} {
			t.Run(kind+" "+name, func(t *testing.T) {
				db, reg := newDatabase(t), handlers.New()
				db.Enqueue(t, kind, int(c.tasks))
				var calls atomic.Int64
				end := make(chan struct{})
				defer close(end)
				each(reg, kind, func(context.Context, *outbox.Task[payload]) error {
					calls.Add(1)
					if c.slow {
						<-end
					}
					return errAlways
				})
				other := newProbe(reg, "OTHER")
				run(t, db, reg, relay.Config{Workers: 10})
				eventually(t, 20*time.Second, "the flood is worked on", func() bool { return calls.Load() >= c.calls })
				other.before(t, db, kind, 10, c.limit)
			})
		}
	}
}
