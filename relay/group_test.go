package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// within is long enough for a group of any test that is to be one.
const within = time.Second

// grouped registers a Tx handler that leaves an effect and then does what else is given.
func grouped(n int, within time.Duration, then func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error,
	opts ...handlers.Option) *handlers.Registry {
	reg := handlers.New()
	opts = append([]handlers.Option{handlers.GroupCommit(n, within), retrySoon(), handlers.NoJitter()}, opts...)
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if err := txEffect(ctx, tx, task); err != nil {
			return err
		}
		return then(ctx, tx, task)
	}, opts...)
	return reg
}

func nothing(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil }

// enqueueGroup enqueues the tasks 1 to n, with keys of these names, and one that runs before them: so
// that the relay knows how little a task takes.
func (db *database) enqueueGroup(t *testing.T, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key, ordering_key)
		SELECT 'TX', jsonb_build_object('n', n), n, n FROM generate_series(1, $1::int) n`, n)
	db.keyed(t, "TX", 0, outbox.Priority(-1))
}

// The first group has one task. How many tasks the next groups have depends on the time that it took.
func TestTasksOfAGroupShareATransaction(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		if n := transactions(t, db, within); n < 3 || n == 64 {
			t.Errorf("64 tasks took %d transactions in groups of 32", n)
		}
	})
}

func TestASlowHandlerHasAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	if n := transactions(t, newDatabase(t), time.Microsecond); n != 64 {
		t.Errorf("64 tasks that took longer than a microsecond each took %d transactions", n)
	}
}

// transactions is how many 64 tasks take, each in its first attempt, in groups of 32.
func transactions(t *testing.T, db *database, within time.Duration) int {
	t.Helper()
	db.Do(t, `ALTER TABLE effect ADD xid text DEFAULT pg_current_xact_id()::text`)
	db.Enqueue(t, "TX", 64)
	once(t, db, grouped(32, within, nothing), relay.Config{Workers: 1})
	db.OnceEach(t, 64)
	db.wantRows(t, 64, `effect WHERE attempt = 1`)
	return db.Int(t, `SELECT count(DISTINCT xid) FROM effect`)
}

// What a handler returns counts for its task alone: the others of its group keep their work. Each task
// has a RunEnd, with what its own call took.
func TestEachTaskOfAGroupHasItsResult(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.enqueueGroup(t, 12)
		told := &heard{}
		took := map[string]time.Duration{}
		log := once(t, db, grouped(16, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			start := time.Now()
			defer func() { took[fmt.Sprint(task.ID, " ", task.Attempt)] = time.Since(start) }()
			if task.Attempt > 1 {
				return nil
			}
			switch task.Payload.N {
			case 1:
				_, err := outbox.Cancel(ctx, tx, 2)
				return err
			case 3:
				return errors.New("refused")
			case 4:
				panic("broke")
			case 6:
				return handlers.Dead(errors.New("hopeless"))
			case 7:
				return handlers.Snooze(time.Hour)
			case 8:
				return handlers.Discard(errors.New("of no use"))
			case 9:
				return execs(nil, `INSERT INTO effect (task_id) VALUES (NULL)`)(ctx, tx)
			case 10:
				return handlers.RetryAfter(time.Hour, errors.New("later"))
			}
			return nil
		}), relay.Config{Workers: 1, Observers: told.observers()})
		if strings.Contains(log, "run one by one") {
			t.Errorf("a group was undone:\n%s", log)
		}
		db.wantText(t, "13 1, 1 1, 3 2, 4 2, 5 1, 8 1, 9 2, 11 1, 12 1",
			`SELECT string_agg(task_id || ' ' || attempt, ', '
			ORDER BY task_id % 13, attempt) FROM effect`)
		db.wantText(t, "6 1 handler", `SELECT string_agg(concat_ws(' ', task_id, attempt, reason), ', ') FROM outbox.dead_task`)
		db.wantText(t, "7 0, 10 0 retry after 1h0m0s: later",
			`SELECT string_agg(concat_ws(' ', task_id, attempt, last_error), ', '
			ORDER BY task_id) FROM outbox.task`)
		db.wantRows(t, 0, `outbox.running`)
		ends := map[int64]string{}
		var returned time.Time // the call before
		for _, e := range told.ends {
			end := e.Tasks[0]
			if end.ID != 2 && end.Outcome == relay.OutcomeReleased {
				continue // a busy machine ends a group early, and the rest of it is the next one
			}
			ends[end.ID] += string(end.Outcome) + " "
			if len(e.Tasks) != 1 || e.Start.IsZero() != (end.ID == 2) || end.ID != 2 &&
				e.Start.Before(returned) ||
				e.Duration < took[fmt.Sprint(end.ID, " ", end.Attempt)] {
				t.Errorf("%+v, when the call before returned at %v and this one took %v", e, returned, took)
			}
			returned = e.Start.Add(e.Duration)
		}
		for id, want := range map[int64]string{1: "done ", 2: "released ", 3: "failed done ", 4: "failed done ",
			5: "done ", 6: "dead ",
			7: "snoozed ", 8: "discarded ", 9: "failed done ", 10: "throttled ", 11: "done ", 12: "done ", 13: "done "} {
			if ends[id] != want {
				t.Errorf("observers heard of task %d %q, want %q", id, ends[id], want)
			}
		}
	})
}

// Groups of two types update the same rows in opposite order: a deadlock is nobody's attempt.
func TestADeadlockBetweenGroupsIsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''20ms''', current_database()); END $$;
		CREATE TABLE account (id int PRIMARY KEY, n int NOT NULL DEFAULT 0);
		INSERT INTO account SELECT generate_series(0, 9)`)
	const tasks = 60
	for range 4 {
		reg := handlers.New()
		for name, order := range map[string]string{"TX": "", "OTHER": "DESC"} {
			relaytest.Register(reg, "tx", name, 1,
				func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
					if err := effect(ctx, tx, tasks[0].ID, tasks[0].Attempt); err != nil {
						return err
					}
					// One row is locked after the other.
					return execs(nil, `UPDATE account a SET n = n + 1 FROM (SELECT id FROM account ORDER BY id `+order+` FOR UPDATE)
					AS locked WHERE a.id = locked.id`)(ctx, tx)
				}, handlers.GroupCommit(10, within), handlers.MaxAttempts(1))
		}
		run(t, db, reg, relay.Config{PollInterval: 20 * time.Millisecond})
	}
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT t FROM generate_series(1, $1::int) n, (VALUES ('TX'), ('OTHER'))
		AS t (t)`, tasks)
	db.Emptied(t, 60*time.Second)
	db.OnceEach(t, 2*tasks)
	db.want(t, 20*tasks, "updates took effect", `SELECT sum(n) FROM account`)
}

// A task that is canceled while it runs in a group is undone, and the others are done.
func TestATaskIsCanceledInItsGroup(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.enqueueGroup(t, 4)
	started := make(chan struct{})
	run(t, db, grouped(4, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if task.Payload.N == 2 {
			close(started)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}), relay.Config{Workers: 1, PollInterval: 20 * time.Millisecond})
	<-started
	db.cancel(t, 2, outbox.CancelRequested)
	db.Emptied(t, 30*time.Second)
	db.wantText(t, "1 3 4 5", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`)
}

// Tasks of a group that have not begun are waiting tasks for all that a handler of the group does, and
// one that failed waits for its retry.
func TestTasksOfAGroupThatHaveNotBegunWait(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	enqueue := func(opts ...outbox.Option) func(tx *sql.Tx) (string, error) {
		return func(tx *sql.Tx) (string, error) {
			got, err := outbox.Enqueue(ctx, tx, "TX", payload{N: 9}, opts...)
			return fmt.Sprint(got.Outcome, " ", got.ID), err
		}
	}
	cancel := func(id int64) func(tx *sql.Tx) (string, error) {
		return func(tx *sql.Tx) (string, error) {
			got, err := outbox.Cancel(ctx, tx, id)
			return string(got), err
		}
	}
	later := outbox.After(time.Hour)
	for name, c := range map[string]struct {
		in     int // the task whose handler does it
		do     func(tx *sql.Tx) (string, error)
		result error // of the first task
		want   string
	}{
		"cancel":                    {1, cancel(2), nil, "canceled: 1 3"},
		"cancel the last":           {2, cancel(3), nil, "canceled: 1 2"},
		"cancel its own task":       {2, cancel(2), nil, "not_found: 1 2 3"},
		"cancel a task that ended":  {2, cancel(1), nil, "not_found: 1 2 3"},
		"cancel a task that failed": {3, cancel(1), handlers.RetryAfter(time.Hour, errMisdeed), "canceled: 1 2 3"},
		"cancel, and fail":          {1, cancel(2), handlers.Snooze(time.Hour), "canceled: 1 2 3"},
		"skip":                      {1, enqueue(outbox.Unique("2")), nil, "skipped 2: 1 2 3"},
		"skip for a task that failed": {2, enqueue(outbox.Unique("1")), handlers.RetryAfter(time.Hour, errMisdeed),
			"skipped 1: 1 2 3"},
		"replace": {1, enqueue(outbox.Unique("2"), outbox.OnConflict(outbox.ConflictReplace)), nil,
			"updated 2: 1 3 9"},
		"reschedule": {1, enqueue(outbox.Unique("2"), outbox.OnConflict(outbox.ConflictReschedule), later),
			nil, "updated 2: 1 3"},
		"the key of a task that ended": {2, enqueue(outbox.Unique("1"), later), nil, "created 5: 1 2 3"},
		"the key of its own task":      {1, enqueue(outbox.Unique("1"), later), nil, "created 5: 1 2 3"},
		"the ordering key of another":  {1, enqueue(outbox.OrderedBy("2")), nil, "created 5: 1 2 3 9"},
		"run now": {1, func(tx *sql.Tx) (string, error) {
			got, err := outbox.RunNow(ctx, tx, 2)
			return fmt.Sprint(got), err
		}, nil, "not_scheduled: 1 2 3"},
		"stats": {2, func(tx *sql.Tx) (string, error) {
			got, err := outbox.Stats(ctx, tx)
			return fmt.Sprint(len(got), " type, ", got[0].Ready, " ready"), err
		}, nil, "1 type, 2 ready: 1 2 3"}, // itself, until its group commits, and the next
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.enqueueGroup(t, 3)
			said, calls := "", ""
			once(t, db, grouped(100, within, func(_ context.Context, tx *sql.Tx,
				task *outbox.Task[payload]) (err error) {
				if task.Payload.N == 0 {
					return nil
				}
				calls += fmt.Sprint(" ", task.Payload.N)
				if task.Payload.N == c.in {
					said, err = c.do(tx)
				}
				if task.Payload.N == 1 {
					err = errors.Join(err, c.result)
				}
				return err
			}), relay.Config{Workers: 1})
			db.wantRows(t, 0, `outbox.running`)
			if got := said + ":" + calls; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

const (
	claimLeases = "outbox: lease"
	endLeases   = "outbox: complete leased tasks"
)

// counted is a pool that counts how often these two statements were sent, and how many connections
// there were at most when one was.
type counted struct {
	*faulty
	database *database
	calls    map[string]*atomic.Int64
	peak     atomic.Int64
}

func (db *database) counted(t *testing.T) *counted {
	t.Helper()
	c := &counted{faulty: &faulty{before: map[string]func(){}}, calls: map[string]*atomic.Int64{}}
	c.database = db.through(t, c.faulty.wrap)
	for _, call := range []string{claimLeases, endLeases} {
		n := &atomic.Int64{}
		c.calls[call] = n
		c.before[call] = func() {
			n.Add(1)
			now := int64(c.database.Stats().OpenConnections)
			for old := c.peak.Load(); now > old && !c.peak.CompareAndSwap(old, now); old = c.peak.Load() {
			}
		}
	}
	return c
}

// meeting is a handler whose calls return at the same time, in groups of n.
func meeting(n int) func(context.Context, *outbox.Task[payload]) error {
	var mu sync.Mutex
	began, gate := 0, make(chan struct{})
	return func(context.Context, *outbox.Task[payload]) error {
		mu.Lock()
		mine := gate
		if began++; began%n == 0 {
			close(gate)
			gate = make(chan struct{})
		}
		mu.Unlock()
		<-mine
		return nil
	}
}

// few checks how many connections there were.
func (c *counted) few(t *testing.T) {
	t.Helper()
	if peak := c.peak.Load(); peak > 16 {
		t.Errorf("%d connections at once", peak)
	}
}

// Promise 5: a lock on a task's row, an operator's or that of a Complete that the task's handler left
// behind, holds up the result of that task only. The results of its group take few connections.
func TestALockedTaskHoldsUpNoResultButItsOwn(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const workers, tasks, locked = 200, 600, 20
	for name, byComplete := range map[string]bool{"by an operator, in a history": false, "by its Complete": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, handler := newDatabase(t), meeting(workers/2)
			c := db.counted(t)
			db.Enqueue(t, "LEASED", tasks)
			done, unlock := make(chan struct{}), make(chan func(), 1)
			options := []handlers.Option{handlers.Retention(time.Hour)}
			if byComplete {
				options = nil
			}
			run(t, c.database, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				switch {
				case task.ID != locked:
				case byComplete:
					inside := make(chan struct{})
					go task.Complete(context.Background(), func(*sql.Tx) error { close(inside); <-done; return nil })
					<-inside
				default:
					unlock <- hold(t, db, `SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, task.ID)
				}
				return handler(ctx, task)
			}, options...), relay.Config{Workers: workers})
			db.becomes(t, 8*time.Second, 1, "all others are done", `SELECT count(*) FROM outbox.task`)
			c.few(t)
			close(done)
			if !byComplete {
				(<-unlock)()
			}
			db.Emptied(t, 30*time.Second)
		})
	}
}

// Slots that become free together are claimed for together, and what ends together is written
// together, in few statements. A conflict with another transaction is no error, for RunOnce either,
// and a group stays together. A claim of more than one text can hold is made smaller.
func TestALeasedClaimOrResultThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for code, call := range map[string]string{"40P01": claimLeases, "40001": endLeases, "54000": claimLeases} {
		t.Run(call+" "+code, func(t *testing.T) {
			db := newDatabase(t)
			const workers = 100
			db.Enqueue(t, "LEASED", workers)
			c := db.counted(t)
			c.arm(call, fault{code: code})
			once(t, c.database, leased(meeting(workers)), relay.Config{Workers: workers})
			db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
			if n := c.calls[call].Load(); code != "54000" && n > 20 || !c.fired() {
				t.Errorf("%d statements, want at most 20; the fault was met: %v", n, c.fired())
			}
		})
	}
}
