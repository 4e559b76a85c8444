package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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

// keyed is a committed Enqueue that is not to wait for a handler: those of these tests end when the
// test goes on. For a sweep of keys it may have to, for a moment.
func (db *database) keyed(t testing.TB, taskType string, n int, opts ...outbox.Option) (got outbox.Enqueued) {
	t.Helper()
	db.inTx(t, func(tx *sql.Tx) (err error) {
		if _, err := tx.Exec(`SET LOCAL lock_timeout = '1min'`); err != nil {
			return err
		}
		got, err = outbox.Enqueue(context.Background(), tx, taskType, payload{N: n}, opts...)
		return err
	})
	return got
}

// I8, F10, F34: an Enqueue during a run does not wait for it. A Unique key is free then, and makes
// another run; one that is kept until its task is done is not.
func TestAKeyedEnqueueDoesNotWaitForTheRunningHandler(t *testing.T) {
	t.Parallel()
	for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
		for _, untilDone := range []bool{false, true} {
			if !relaytest.Long && untilDone == (taskType == "BATCH") { // half of the pairs, each kind in one
				continue
			}
			t.Run(fmt.Sprintf("%s until done %v", taskType, untilDone), func(t *testing.T) {
				db := newDatabase(t)
				unique := outbox.Unique("k")
				if untilDone {
					unique = outbox.Unique("k", outbox.UntilDone())
				}
				started, release := make(chan int, 10), make(chan struct{})
				reg := handlers.New()
				each(reg, taskType, func(_ context.Context, task *outbox.Task[payload]) error {
					started <- task.Payload.N
					<-release
					return nil
				})
				first := db.keyed(t, taskType, 0, unique)
				r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond, Workers: 2})
				letGo := sync.OnceFunc(func() { close(release) })
				defer letGo()
				<-started
				const last = 5
				for i := 1; i <= last; i++ { // the handler does not end before they return
					got := db.keyed(t, taskType, i, unique, outbox.OnConflict(outbox.ConflictReplace), outbox.After(time.Minute))
					switch {
					case untilDone && got != (outbox.Enqueued{ID: first.ID, Outcome: outbox.OutcomeSkipped}):
						t.Errorf("got %v, want task %d skipped", got, first.ID)
					case !untilDone && (got.Outcome == outbox.OutcomeCreated) != (i == 1):
						t.Errorf("enqueue %d: got %v, want one more task, then updates of it", i, got)
					}
				}
				if !untilDone { // the signal makes a run of its own
					db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE state = 'scheduled'`)
					outbox.Wake()
				}
				letGo()
				db.Emptied(t, 20*time.Second)
				r.Stop()
				var again []int
				for len(started) > 0 {
					again = append(again, <-started)
				}
				if want := map[bool][]int{false: {last}}[untilDone]; !slices.Equal(again, want) {
					t.Errorf("further runs got %v, want %v", again, want)
				}
			})
		}
	}
}

func TestARetryKeepsItsKeyUnlessANewerTaskTookIt(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, taskType := range []string{"TX", "BATCH", "LEASED"} {
		for untilDone, unique := range map[bool]outbox.Option{false: outbox.Unique("k"),
			true: outbox.Unique("k", outbox.UntilDone())} {
			t.Run(fmt.Sprintf("%s until done %v", taskType, untilDone), func(t *testing.T) {
				db := newDatabase(t)
				during := func() {}
				reg := handlers.New()
				each(reg, taskType, func(context.Context, *outbox.Task[payload]) error {
					during()
					during = func() {}
					return errors.New("again")
				}, handlers.Backoff(constant(time.Hour)), handlers.MaxAttempts(3))
				again := func() {
					db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE attempt > 0`)
					once(t, db, reg, relay.Config{})
				}
				want := func(when string, got outbox.Enqueued, outcome outbox.Outcome, holder int64) {
					t.Helper()
					if got.Outcome != outcome || outcome == outbox.OutcomeSkipped && got.ID != holder {
						t.Errorf("%s: got %v, want %v for task %d", when, got, outcome, holder)
					}
				}
				first := db.keyed(t, taskType, 0, unique).ID
				once(t, db, reg, relay.Config{})
				want("while it waits for its retry", db.keyed(t, taskType, 1, unique), outbox.OutcomeSkipped, first)
				var newer outbox.Enqueued
				during = func() { newer = db.keyed(t, taskType, 2, unique, outbox.After(time.Hour)) }
				again()
				holder, asDead := newer.ID, outbox.OutcomeSkipped
				if untilDone {
					want("during the retry", newer, outbox.OutcomeSkipped, first)
					holder, asDead = first, outbox.OutcomeCreated
				} else {
					want("during the retry", newer, outbox.OutcomeCreated, 0)
				}
				want("after the retry", db.keyed(t, taskType, 3, unique), outbox.OutcomeSkipped, holder)
				again() // the last attempt
				db.wantText(t, fmt.Sprintf("%d k %v", first, untilDone), `SELECT task_id || ' ' || unique_key || ' ' ||
					unique_until_done FROM outbox.dead_task`)
				want("as a dead letter", db.keyed(t, taskType, 4, unique), asDead, holder)
			})
		}
	}
}

func TestKeysOfTasksThatAreGoneAreSweptAndOthersStay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key, run_at) SELECT 'LATER', n::text, now() + interval '1 hour'
		FROM generate_series(1, 1500) n`)
	db.Do(t, `INSERT INTO outbox.unique_key (task_type, key, task_id) SELECT 'T' || n % 3, n::text, 1000000 + n
		FROM generate_series(1, 6000) n`)
	run(t, db, all(), relay.Config{})
	eventually(t, 30*time.Second, "the keys are swept", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.unique_key`) < 1500+1500/9+1
	})
	db.wantRows(t, 1500, `outbox.task JOIN outbox.unique_key USING (task_id)`)
}

// A handler that enqueues under its own key: there is one waiting task of the key after every
// result. In the transaction that removes the task the key is free for the task that follows, which
// is dropped if the task goes on. In another transaction the Enqueue is skipped.
func TestAKeyThatIsKeptUntilDoneHasOneTaskAfterEveryResultOfAHandlerThatEnqueuesIt(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, kind := range []string{"tx", "batch", "complete", "leased"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			results := map[string]error{"nil": nil, "error": boom, "Snooze": handlers.Snooze(time.Hour),
				"RunAgain": handlers.RunAgain(time.Hour)}
			wantOutcome, follows := outbox.OutcomeCreated, "follows"
			switch kind {
			case "leased":
				wantOutcome, follows = outbox.OutcomeSkipped, ""
			case "batch":
				results["error in part"] = nil // what the call wrote is kept
			}
			db, reg, unique := newDatabase(t), handlers.New(), outbox.Unique("k", outbox.UntilDone())
			var runs atomic.Int32
			first := map[string]outbox.Enqueued{}
			for name, result := range results {
				typ := outbox.NewTaskType[payload](name)
				handle := func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) (err error) {
					runs.Add(1)
					var got outbox.Enqueued
					if tx != nil {
						got, err = typ.Enqueue(ctx, tx, payload{N: 1}, unique, outbox.After(time.Hour))
					} else {
						got = db.keyed(t, name, 1, unique, outbox.After(time.Hour))
					}
					if err != nil || got.Outcome != wantOutcome {
						t.Errorf("%s: the handler's Enqueue: %v, %v; want %v", name, got, err, wantOutcome)
					}
					if name == "error in part" {
						return handlers.BatchResult{tasks[0].ID: boom}
					}
					return result
				}
				relaytest.Register(reg, kind, name, 10, handle, handlers.Backoff(constant(time.Hour)))
				first[name] = db.keyed(t, name, 0, unique)
			}
			for run := 1; run <= 2; run++ {
				once(t, db, reg, relay.Config{})
				for name, task := range first {
					want := fmt.Sprintf("%d scheduled", task.ID)
					if name == "nil" {
						want = follows
					}
					db.wantText(t, want, `SELECT string_agg(CASE payload->>'N'
						WHEN '1' THEN 'follows' ELSE task_id || ' ' || state END, ', ' ORDER BY task_id)
						FROM outbox.task WHERE task_type = $1`, name)
					if name == "nil" {
						continue
					}
					if got := db.keyed(t, name, 2, unique); got != (outbox.Enqueued{ID: task.ID, Outcome: outbox.OutcomeSkipped}) {
						t.Errorf("%s: an Enqueue after run %d: %v, want task %d skipped", name, run, got, task.ID)
					}
					db.wantText(t, "1", `SELECT sum(arrived) FROM (SELECT * FROM outbox.counter
						UNION ALL SELECT task_type, kind, tasks, arrived FROM outbox.counter_log) c WHERE task_type = $1`, name)
				}
				db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE task_type <> 'nil'`)
			}
			if want := 2*len(first) - 1; int(runs.Load()) != want {
				t.Errorf("%d runs, want %d", runs.Load(), want)
			}
		})
	}
}

// A relay that runs while its database is adopted as a copy gives the tasks other keys soon.
func TestAnAdoptedDatabaseHasOtherKeys(t *testing.T) {
	t.Parallel()
	db, reg, seen := newDatabase(t), handlers.New(), make(chan string, 1)
	handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error {
		seen <- task.Key()
		return nil
	})
	run(t, db, reg, relay.Config{})
	half := func() string {
		relaytest.EnqueueAll(db.DB, typeLeased.New(payload{}))
		return (<-seen)[:14]
	}
	before := half()
	if want := db.Text(t, `SELECT left(database_id::text, 14) FROM outbox.identity`); before != want {
		t.Errorf("the keys begin with %s, want %s", before, want)
	}
	db.Do(t, `UPDATE outbox.origin SET database_id = gen_random_uuid()`)
	want := db.Text(t, `SELECT left(database_id::text, 14) FROM outbox.identity`)
	eventually(t, time.Minute, "the new keys", func() bool { return half() == want })
}
