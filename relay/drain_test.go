package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
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

// These tests count the goroutines of all relays of the process, so none is parallel to others.

// nothingLeft checks I11 after Run has returned: no connection, lock or transaction is left, and no
// row of the relay or of its runs. That no goroutine is left is checked wherever a relay stops.
func nothingLeft(t *testing.T, db *database, pool *sql.DB) {
	t.Helper()
	for what, query := range map[string]string{
		"rows of relays": `SELECT count(*) FROM outbox.relay`,
		"rows of runs":   `SELECT count(*) FROM outbox.running`,
		"leased tasks":   `SELECT count(*) FROM outbox.task WHERE state = 'leased'`,
	} {
		if n := db.Int(t, query); n != 0 {
			t.Errorf("I11: %d %s are left", n, what)
		}
	}
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("I11: %d connections are in use", n)
	}
	db.Idle(t)
	eventually(t, 10*time.Second, "I11: no lock", func() bool { // one whose client gave up as it began has some
		return db.Int(t, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE a.datname = current_database()
			AND a.backend_type = 'client backend' AND pid <> pg_backend_pid()`) == 0
	})
}

// work is a handler of each kind; f is told of each call and decides how it ends, after its effect
// was written.
func work(f func(ctx context.Context, tasks int) error, opts ...handlers.Option) *handlers.Registry {
	reg := handlers.New()
	for kind, taskType := range map[string]string{"tx": "TX", "batch": "BATCH"} {
		relaytest.Register(reg,
			kind, taskType, 3, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				return errors.Join(batchEffect(context.Background(), tx, tasks), f(ctx, len(tasks)))
			}, opts...)
	}
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		if err := f(ctx, 1); err != nil {
			return err
		}
		return leasedEffect(context.WithoutCancel(ctx), task)
	}, opts...)
	return reg
}

// I11.
func TestADrainAtAnyMomentFinishesWhatRunsAndRepeatsNothing(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	rounds := relaytest.Times(5, 10)
	db := newDatabase(t)
	var started atomic.Int64 // tasks
	reg := work(func(ctx context.Context, tasks int) error {
		started.Add(int64(tasks))
		select {
		case <-time.After(rand.N(30 * time.Millisecond)):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	enqueued, midway := 0, 0
	for round := range rounds {
		for _, name := range []string{"TX", "BATCH", "LEASED"} {
			db.Enqueue(t, name, 30)
			enqueued += 30
		}
		pool := open(t, db.URL)
		config := relay.Config{PollInterval: 50 * time.Millisecond}
		if round%2 == 0 {
			config.ListenDSN = db.URL
		}
		r := run(t, pool, reg, config)
		<-time.After(rand.N(150 * time.Millisecond))
		r.Stop()
		nothingLeft(t, db, pool.DB)
		pool.Close()
		if n := db.Int(t, `SELECT count(*) FROM effect`); int64(n) != started.Load() {
			t.Errorf("round %d: %d effects of %d tasks that were started", round, n, started.Load())
		}
		left := db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0 AND last_error IS NULL`)
		if done := int(started.Load()); left != enqueued-done {
			t.Errorf("round %d: %d tasks are as they were enqueued, want %d\n%s", round, left, enqueued-done, db.Dump(t))
		} else if left > 0 {
			midway++
		}
	}
	if midway < rounds/4 {
		t.Errorf("only %d of %d drains came while there was work", midway, rounds)
	}
	once(t, db, reg, relay.Config{})
	if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`); n != enqueued ||
		started.Load() != int64(enqueued) {
		t.Errorf("effects of %d tasks, and %d tasks were started; want %d of each", n, started.Load(), enqueued)
	}
}

// After the drain timeout a handler's context ends and says why. Its run is no attempt, and what it
// wrote is undone, unless it succeeds all the same.
func TestAHandlerThatOutlastsTheDrainTimeoutIsToldAndItsTaskRunsAgain(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for _, succeeds := range []bool{false, true} {
		t.Run(fmt.Sprintf("succeeds=%v", succeeds), func(t *testing.T) {
			db := newDatabase(t)
			var started sync.WaitGroup
			started.Add(3)
			causes := make(chan error, 3)
			reg := work(func(ctx context.Context, tasks int) error {
				started.Done()
				<-ctx.Done()
				causes <- context.Cause(ctx)
				if succeeds {
					return nil
				}
				return ctx.Err()
			}, handlers.MaxAttempts(1))
			for name, n := range map[string]int{"TX": 1, "BATCH": 3, "LEASED": 1} {
				db.Enqueue(t, name, n)
			}
			pool := open(t, db.URL)
			r := run(t, pool, reg,
				relay.Config{Workers: 4, DrainTimeout: 100 * time.Millisecond, PollInterval: 50 * time.Millisecond})
			started.Wait()
			r.Stop()
			nothingLeft(t, db, pool.DB)
			for range 3 {
				if cause := <-causes; !errors.Is(cause, outbox.ErrDraining) {
					t.Errorf("the handler's context ended by %v, want ErrDraining", cause)
				}
			}
			want := map[bool]int{false: 5, true: 0}[succeeds]
			db.wantRows(t, want, `outbox.task WHERE attempt = 0 AND state = 'ready' AND last_error IS NULL`)
			db.wantRows(t, 5-want, `effect`)
			once(t, db, all(), relay.Config{})
			db.wantRows(t, 5, `effect WHERE attempt = 1`)
		})
	}
}

// A handler that does not return is left behind. Run returns, the tasks are free for others at
// once, and what the handler does later has no effect.
func TestAHandlerThatIgnoresTheDrainIsLeftBehindWithoutItsTask(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	var started, ended sync.WaitGroup
	started.Add(5)
	ended.Add(5)
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	late := make(chan error, 5)
	reg := handlers.New()
	for kind, taskType := range map[string]string{"tx": "TX", "batch": "BATCH", "leased": "LEASED",
		"complete": "COMPLETE"} {
		relaytest.Register(reg,
			kind, taskType, 3, func(_ context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				defer ended.Done()
				started.Done()
				<-release
				if tx == nil {
					late <- leasedEffect(context.Background(), tasks[0])
				} else {
					late <- batchEffect(context.Background(), tx, tasks)
				}
				return nil
			})
	}
	registerTx(reg, outbox.NewTaskType[payload]("SQL"),
		func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			defer ended.Done()
			started.Done()
			_, err := tx.ExecContext(context.Background(), `SELECT pg_sleep(60)`)
			late <- err
			return nil
		})
	for name, n := range map[string]int{"TX": 1, "BATCH": 3, "LEASED": 1, "SQL": 1, "COMPLETE": 1} {
		db.Enqueue(t, name, n)
	}
	pool := open(t, db.URL)
	r := run(t, pool, reg,
		relay.Config{Workers: 10, DrainTimeout: 100 * time.Millisecond, PollInterval: 50 * time.Millisecond})
	r.Leaves("TestAHandlerThatIgnoresTheDrainIsLeftBehindWithoutItsTask")
	started.Wait()
	r.Stop()
	nothingLeft(t, db, pool.DB)
	db.wantRows(t, 7, `outbox.task WHERE attempt = 0 AND state = 'ready'`)
	again := all()
	registerTx(again, outbox.NewTaskType[payload]("SQL"), txEffect)
	handlers.Leased(again, outbox.NewTaskType[payload]("COMPLETE"), leasedEffect)
	once(t, db, again, relay.Config{})
	let()
	for range 5 {
		if err := <-late; err == nil {
			t.Error("a handler that was left behind could still write")
		}
	}
	ended.Wait()
	// of the second relay
	db.wantText(t, "7 7", `SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE attempt = 1)) FROM effect`)
	r.Ended(t)
}

// F31. Run waits for the connect_timeout of its listener, of 5 s.
func TestAListenConnectionThatNobodyAnswersEndsWithTheRelay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	noErr(t, err)
	defer silent.Close()
	pool := open(t, db.URL)
	r := run(t, pool, all(), relay.Config{ListenDSN: "postgres://u@" + silent.Addr().String() + "/d?sslmode=disable"})
	conn, err := silent.Accept()
	noErr(t, err)
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { // it asks, and waits from now on
		t.Fatal(err)
	}
	r.Stop()
	nothingLeft(t, db, pool.DB)
}

// After Ctrl-C the log has the number of tasks that a relay waits for, and later the tasks that it stopped.
func TestARelayThatStopsSaysWhatItWaitsForAndInTheEndWhichTasks(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	var started sync.WaitGroup
	release := make(chan struct{})
	reg := work(func(context.Context, int) error { // it runs past its timeout on a busy machine
		started.Done()
		<-release
		return nil
	}, handlers.MaxAttempts(1))
	start := func(drain time.Duration) (stop context.CancelFunc, stopped <-chan error) {
		started.Add(3)
		for name, n := range map[string]int{"TX": 1, "BATCH": 3, "LEASED": 1} {
			db.Enqueue(t, name, n)
		}
		r := unstarted(t, open(t, db.URL), reg, relay.Config{Workers: 4, DrainTimeout: drain,
			PollInterval: 50 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		started.Wait()
		return cancel, done
	}
	const says = `outbox: relay stopping; it waits for the tasks that run`

	stop, stopped := start(-1)
	log.Want(t, 0, says)
	stop()
	eventually(t, 20*time.Second, "it says what it waits for", func() bool { return log.Count(says) == 1 })
	log.Want(t, 1, `tasks="map[BATCH:3 LEASED:1 TX:1]"`)
	log.Want(t, 0, "outbox: relay stopped")
	close(release)
	noErr(t, <-stopped)
	const passed = "the drain timeout has passed"
	log.Want(t, 0, passed)

	db.Do(t, `DELETE FROM outbox.task`)
	release = make(chan struct{})
	stop, stopped = start(10 * time.Millisecond)
	ids := db.Text(t, `SELECT 'task_ids="map[' || string_agg(task_type || ':[' || ids || ']', ' '
		ORDER BY task_type) || ']"'
		FROM (SELECT task_type, string_agg(task_id::text, ' ' ORDER BY task_id) AS ids FROM outbox.task
		GROUP BY task_type) t`)
	stop()
	eventually(t, 20*time.Second, "it says which tasks it stops", func() bool { return log.Count(passed) == 1 })
	log.Want(t, 2, says)
	log.Want(t, 1, ids)
	close(release)
	noErr(t, <-stopped)

	db.Do(t, `DELETE FROM outbox.task`)
	idle := run(t, db, all(), relay.Config{})
	eventually(t, 20*time.Second, "it has started", func() bool { return idle.Log.Count("outbox: relay started") == 1 })
	idle.Stop()
	idle.Log.Want(t, 0, "relay stopping")
	idle.Log.Want(t, 1, "outbox: relay stopped")
}
