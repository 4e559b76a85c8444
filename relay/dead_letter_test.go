package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestOnDeadIsCalledOnceForEachDeadLetter(t *testing.T) {
	boom := errors.New("boom")
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		kinds[kind](reg, "FAILS", func(*outbox.Task[payload]) error { return boom }, handlers.MaxAttempts(1))
		kinds[kind](reg, "DIES", func(*outbox.Task[payload]) error { return handlers.Dead(boom) })
		kinds[kind](reg, "WORKS", func(*outbox.Task[payload]) error { return nil })
		for _, name := range []string{"FAILS", "DIES", "WORKS"} {
			db.Enqueue(t, name, 20)
		}
		dead := 40
		if kind == "tx" {
			registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
				_, err := tx.ExecContext(ctx, "COMMIT")
				return errors.Join(boom, err)
			})
			db.Enqueue(t, "TX", 1)
			dead++
		}
		var told noted[relay.DeadLetter]
		onDead := func(_ context.Context, d relay.DeadLetter) { told.add(d) }
		once(t, db, reg, relay.Config{OnDead: onDead}) // waits for the calls
		var got, want []string
		for _, d := range told.list() {
			got = append(got, fmt.Sprint(d.ID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason, d.LastError))
		}
		all := admin.TaskQuery{Filter: admin.Filter{State: admin.StateDead}, Limit: 1000}
		letters, err := relaytest.Admin(t, db.DB).Tasks(t.Context(), all)
		must(err)
		for _, d := range letters.Tasks {
			want = append(want, fmt.Sprint(d.ID, d.Key, d.Type, d.Attempt, d.MaxAttempts, d.Reason, d.LastError))
		}
		slices.Sort(got)
		slices.Sort(want)
		if len(want) != dead || !slices.Equal(got, want) {
			t.Errorf("it was told of\n%s\nthere are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestOnDeadNeitherStopsNorSlowsTheRelay(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 500, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		return handlers.Dead(errors.New("boom"))
	})
	const dead = 1500
	db.Enqueue(t, "BATCH", dead)
	var told noted[relay.DeadLetter]
	release := make(chan struct{})
	first := true
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond,
		OnDead: func(_ context.Context, d relay.DeadLetter) {
			told.add(d)
			if first {
				first = false
				<-release // and all of the following wait
				panic("oops")
			}
		}})
	db.becomes(t, 30*time.Second, dead, "all dead letters", `SELECT count(*) FROM outbox.dead_task`)
	eventually(t, 30*time.Second, "all were told", func() bool {
		return r.Log.Count("a task became a dead letter") == dead
	})
	r.Log.Want(t, 1, "OnDead is slower")
	if n := len(told.list()); n != 1 {
		t.Errorf("%d calls, want 1 that does not return", n)
	}
	close(release)
	eventually(t, 30*time.Second, "the calls that waited", func() bool { return len(told.list()) >= 1001 })
	r.Stop()
	if n := len(told.list()); n > 1002 || r.Log.Count("panic: oops") != 1 ||
		r.Log.Count("OnDead was not called for some dead letters") != 1 {
		t.Errorf("%d calls, want 1,001; log:\n%s", n, r.Log.Tail())
	}
}

// die runs tasks of the type X, each of which dies.
func die(t testing.TB, db *database) {
	t.Helper()
	reg := handlers.New()
	kinds["tx"](reg, "X", func(*outbox.Task[payload]) error { return handlers.Dead(errAlways) })
	once(t, db, reg, relay.Config{})
}

func (db *database) redrive(t testing.TB, ids ...int64) {
	t.Helper()
	db.redriveSome(t, ids, nil)
}

// redriveSome redrives two kinds of dead letters: those that are, and those that are skipped.
func (db *database) redriveSome(t testing.TB, ids, skipped []int64) {
	t.Helper()
	both := admin.Filter{IDs: slices.Concat(ids, skipped)}
	got, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), both, admin.Bulk{})
	if err != nil || !slices.Equal(slices.Sorted(slices.Values(got.IDs)), ids) || !slices.Equal(got.Skipped, skipped) {
		t.Fatalf("Redrive: got %v, %v, want %v and %v skipped", got, err, ids, skipped)
	}
}

func TestARedrivenTaskHasItsUniqueKeyAgain(t *testing.T) {
	t.Parallel()
	for name, unique := range map[string]outbox.Option{"Unique": outbox.Unique("k"),
		"UntilDone": outbox.Unique("k", outbox.UntilDone()), "UniquePayload": outbox.UniquePayload()} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			old := db.keyed(t, "X", 1, unique)
			die(t, db)
			if name != "UntilDone" { // the keys were swept
				db.Do(t, `DELETE FROM outbox.unique_key`)
			}
			db.redrive(t, old.ID)
			for want, option := range map[outbox.Outcome]outbox.Option{outbox.OutcomeSkipped: outbox.OnConflict(outbox.ConflictSkip),
				outbox.OutcomeUpdated: outbox.OnConflict(outbox.ConflictReplace)} {
				if e := db.keyed(t, "X", 1, unique, option); e.ID != old.ID || e.Outcome != want {
					t.Errorf("Enqueue: got %v, want %v of task %d", e, want, old.ID)
				}
			}
			die(t, db)
			newer := db.keyed(t, "X", 1, unique)
			db.redriveSome(t, nil, []int64{old.ID})
			if e := db.keyed(t, "X", 1, unique); e.ID != newer.ID || e.Outcome != outbox.OutcomeSkipped ||
				newer.Outcome != outbox.OutcomeCreated {
				t.Errorf("with a newer task %v: got %v, want it skipped", newer, e)
			}
			die(t, db)
			db.redriveSome(t, []int64{old.ID}, []int64{newer.ID}) // of two with one key the first to die
			got, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{WithoutKey: true})
			if err != nil || !slices.Equal(got.IDs, []int64{newer.ID}) || got.Skipped != nil {
				t.Errorf("without its key: got %v, %v, want task %d", got, err, newer.ID)
			}
			if e := db.keyed(t, "X", 1, unique); e.ID != old.ID || e.Outcome != outbox.OutcomeSkipped {
				t.Errorf("of two redriven ones the key is with %v, want %d", e, old.ID)
			}
			db.want(t, 1, "tasks with a key and one without", `SELECT count(DISTINCT unique_key) FROM outbox.task
				HAVING count(*) = 2`)
			// The key of a task that runs is free, unless it keeps the key until it is done.
			die(t, db)
			running := db.keyed(t, "X", 1, unique)
			if name == "UniquePayload" {
				db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()
					WHERE task_id = $1`, running.ID)
			} else {
				defer hold(t, db, `DELETE FROM outbox.task WHERE task_id = $1`, running.ID)()
			}
			if name == "UntilDone" {
				db.redriveSome(t, nil, []int64{old.ID})
			} else {
				db.redrive(t, old.ID)
			}
		})
	}
}

func TestRedriveAndEnqueueManyOfTheSameKeysDoNotDeadlock(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	client := relaytest.Admin(t, db.DB)
	var tasks []outbox.TaskSpec
	for n := range 60 {
		for _, unique := range []outbox.Option{outbox.UniquePayload(), outbox.Unique(fmt.Sprint(n))} {
			tasks = append(tasks, outbox.TaskSpec{Type: "X", Payload: payload{N: n}, Options: []outbox.Option{unique}})
		}
	}
	many := func() {
		shuffled := slices.Clone(tasks)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := outbox.EnqueueMany(t.Context(), tx, shuffled)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for range 25 {
		db.Do(t, `DELETE FROM outbox.task`)
		many()
		db.Do(t, `WITH gone AS (DELETE FROM outbox.task RETURNING *)
			INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type,
			payload, unique_key)
			SELECT task_id, run_at, created_at, 0, 1, 1, 'handler', task_type, payload, unique_key FROM gone`)
		var all sync.WaitGroup
		all.Go(many)
		all.Go(many)
		if _, err := client.Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{}); err != nil {
			t.Error(err)
		}
		all.Wait()
	}
}

// cancel calls outbox.Cancel in a transaction that commits, and checks its answer if one is wanted.
func (db *database) cancel(t testing.TB, id int, want ...outbox.CancelResult) (got outbox.CancelResult) {
	t.Helper()
	db.inTx(t, func(tx *sql.Tx) (err error) {
		got, err = outbox.Cancel(context.Background(), tx, int64(id))
		return err
	})
	if len(want) > 0 && got != want[0] {
		t.Errorf("Cancel of task %d: %v, want %v", id, got, want[0])
	}
	return got
}

// gone waits until neither a task nor a request, a run or a dead letter is left.
func (db *database) gone(t testing.TB) {
	t.Helper()
	db.becomes(t, 20*time.Second, 0, "nothing is left", `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*)
		FROM outbox.cancel) + (SELECT count(*) FROM outbox.running)`)
	db.wantRows(t, 0, `outbox.dead_task`)
}

// The handlers have written their effect before. Those of Tx and Batch that return nil all the same
// have done the task.
func TestACanceledRunEndsAndIsNotRetried(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		release := make(chan struct{})
		defer close(release)
		ends := []func(ctx context.Context) error{ // by the task's payload; a nil one is in a statement
			func(ctx context.Context) error { return ctx.Err() },
			func(ctx context.Context) error { return handlers.Dead(errAlways) },
			func(ctx context.Context) error { return handlers.Snooze(time.Hour) },
			func(ctx context.Context) error { panic("canceled") },
			func(ctx context.Context) error { return nil },
			func(ctx context.Context) error { <-release; return nil }, // it is abandoned
			nil,
		}
		n := 3 * len(ends)
		var calls atomic.Int32
		causes, begun := make(chan error, 2*n), make(chan struct{}, 2*n)
		wait := func(ctx context.Context, tx *sql.Tx, i int) (err error) {
			calls.Add(1)
			begun <- struct{}{}
			end := ends[i-1]
			if end == nil && tx != nil {
				_, err = tx.ExecContext(ctx, `SELECT pg_sleep(30)`)
			}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			if end == nil {
				return errors.Join(err, ctx.Err())
			}
			return end(ctx)
		}
		reg := handlers.New()
		for _, kind := range []string{"tx", "batch", "leased"} {
			relaytest.Register(reg, kind, kind, 1,
				func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) (err error) {
					if tx != nil {
						err = effect(ctx, tx, tasks[0].ID, 1)
					}
					return errors.Join(err, wait(ctx, tx, tasks[0].Payload.N))
				}, handlers.MaxAttempts(1))
		}
		run(t, db, reg, relay.Config{Workers: n + 5, PollInterval: 100 * time.Millisecond})
		for _, kind := range []string{"tx", "batch", "leased"} {
			db.Enqueue(t, kind, len(ends))
		}
		for range n {
			<-begun
		}
		for id := 1; id <= n; id++ {
			db.cancel(t, id, outbox.CancelRequested)
		}
		for range n {
			if cause := <-causes; !errors.Is(cause, outbox.ErrCanceled) {
				t.Errorf("the context ended by %v, want ErrCanceled", cause)
			}
		}
		db.gone(t)
		db.wantText(t, "5 12", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`)
		if calls.Load() != int32(n) {
			t.Errorf("%d calls, want %d", calls.Load(), n)
		}
	})
}

// The others run again.
func TestCanceledTasksEndTheirBatch(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	begun := make(chan struct{}, 5)
	var calls atomic.Int32
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
		if calls.Add(1) > 1 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		return errAlways
	}, handlers.Retention(time.Hour), handlers.MaxRunning(1), retrySoon())
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, ordering_key) SELECT 'BATCH', n, n
		FROM generate_series(1, 5) n`)
	run(t, db, reg, fastPoll)
	<-begun
	db.Do(t, `SELECT outbox.cancel_task(2), outbox.cancel_task(4)`)
	db.gone(t)
	db.wantText(t, "1 1, 3 1, 5 1", `SELECT string_agg(task_id || ' ' || attempt, ', ' ORDER BY task_id) FROM outbox.done_task`)
	db.wantText(t, "2", `SELECT sum(tasks) FROM (SELECT kind, tasks FROM outbox.counter UNION ALL
		SELECT kind, tasks FROM outbox.counter_log) c WHERE kind = 'canceled'`)
}
