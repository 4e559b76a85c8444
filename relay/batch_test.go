package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// A row that breaks a deferred constraint shows at the commit, or just before it: it takes nobody along.
func TestADeferredConstraintViolatorAmongGoodTasksDiesAlone(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY)`)
		db.Do(t, `INSERT INTO parent SELECT generate_series(1, 100)`)
		db.Do(t, `CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
		insert := func(ctx context.Context, tx outbox.Tx, task *outbox.Task[payload]) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES ($1)`, task.Payload.N)
			return err
		}
		reg := handlers.New()
		handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			return insert(ctx, tx, task)
		}, handlers.MaxAttempts(3), retrySoon())
		handlers.Batch(reg, typeBatch, 16, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			for _, task := range tasks {
				if err := insert(ctx, tx, task); err != nil {
					return err
				}
			}
			return nil
		}, handlers.MaxAttempts(3), retrySoon())
		for _, name := range []string{"TX", "BATCH"} {
			db.Do(t, `INSERT INTO outbox.task (task_type, payload)
				SELECT $1, jsonb_build_object('n', CASE WHEN n = 50 THEN 1000 WHEN n > 50 THEN n - 1 ELSE n END) FROM generate_series(1, 101) n`, name)
		}
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 60*time.Second)
		if n := db.Int(t, `SELECT count(*) FROM (SELECT parent FROM child GROUP BY parent HAVING count(*) = 2) c`); n != 100 {
			t.Errorf("%d rows were written once by each of the two handlers, want 100", n)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE payload->>'n' = '1000' AND attempt = 3 AND reason = 'attempts' AND last_error LIKE '%violates foreign key%'`); n != 2 {
			t.Errorf("%d dead letters as they should be, want 2", n)
		}
		if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 2 {
			t.Errorf("%d dead letters, want 2\n%s", n, db.Dump(t))
		}
	})
}

func TestOneBadRowInAThousandDiesAndTheOthersFinish(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const tasks = 3000
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Batch(reg, typeBatch, 50, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		if err := batchEffect(ctx, tx, tasks); err != nil {
			return err
		}
		for _, task := range tasks {
			if task.Payload.N%1000 == 500 {
				return fmt.Errorf("bad row %d", task.Payload.N)
			}
		}
		return nil
	}, handlers.MaxAttempts(2), retrySoon())
	db.Enqueue(t, "BATCH", tasks)
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 60*time.Second)
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE (payload->>'n')::int % 1000 = 500 AND attempt = 2 AND last_error = 'bad row ' || (payload->>'n')`); n != tasks/1000 {
		t.Errorf("%d bad rows are dead letters as they should be, want %d\n%s", n, tasks/1000, db.Dump(t))
	}
	if all, first, ids := db.Int(t, `SELECT count(*) FROM effect`), db.Int(t, `SELECT count(*) FROM effect WHERE attempt = 1`), db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); all != tasks-tasks/1000 || first != all || ids != all {
		t.Errorf("%d effects, %d of first attempts, of %d tasks; want %d each", all, first, ids, tasks-tasks/1000)
	}
}

// batchCalls are what a Batch handler was called with: the numbers and attempts of its tasks.
type batchCalls struct {
	mu    sync.Mutex
	calls []string
}

func (b *batchCalls) record(tasks []*outbox.Task[payload]) {
	text := ""
	for _, task := range tasks {
		text += fmt.Sprintf("%d.%d ", task.Payload.N, task.Attempt)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, text)
}

func TestTheTasksOfAFailedBatchRunOneByOneInOrderAndOnlyThoseRunsCount(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, calls := handlers.New(), &batchCalls{}
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		calls.record(tasks)
		for _, task := range tasks {
			if task.Payload.N == 3 || task.Payload.N == 5 {
				return errors.Join(batchEffect(ctx, tx, tasks), errors.New("boom"))
			}
		}
		return batchEffect(ctx, tx, tasks)
	}, handlers.MaxAttempts(2), handlers.Backoff(constant(time.Hour)))
	db.Enqueue(t, "BATCH", 6)
	once(t, db, reg, relay.Config{Workers: 1})
	if got, want := calls.calls, []string{"1.1 2.1 3.1 4.1 5.1 6.1 ", "1.1 ", "2.1 ", "3.1 ", "4.1 ", "5.1 ", "6.1 "}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	db.Do(t, `UPDATE outbox.task SET run_at = now()`)
	calls.calls = nil
	once(t, db, reg, relay.Config{Workers: 1})
	if got, want := calls.calls, []string{"3.2 5.2 ", "3.2 ", "5.2 "}; !slices.Equal(got, want) {
		t.Errorf("calls of the retries %q, want %q", got, want)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 2 AND last_error = 'boom'`); n != 2 {
		t.Errorf("%d dead letters, want 2\n%s", n, db.Dump(t))
	}
	if got, want := db.Text(t, `SELECT string_agg(attempt::text, ' ') FROM effect`), "1 1 1 1"; got != want {
		t.Errorf("attempts of the effects %q, want %q", got, want)
	}
}

func TestABatchErrorFailsOnlyTheTasksItNames(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		reg, calls := handlers.New(), &batchCalls{}
		boom := errors.New("boom")
		results := map[int]error{2: boom, 3: handlers.RetryAfter(5*time.Minute, boom), 4: handlers.Snooze(5 * time.Minute),
			5: handlers.Dead(boom), 6: handlers.Discard(boom), 7: nil}
		handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			calls.record(tasks)
			failed := handlers.BatchError{-1: boom}
			for _, task := range tasks {
				if result, ok := results[task.Payload.N]; ok {
					failed[task.ID] = result
				}
				if result := results[task.Payload.N]; result == nil {
					if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
						return err
					}
				}
			}
			return fmt.Errorf("some of %d failed: %w", len(tasks), failed)
		}, handlers.Backoff(constant(time.Hour)))
		db.Enqueue(t, "BATCH", 8)
		db.Do(t, `CREATE TABLE seen AS SELECT task_id, (payload->>'n')::int AS n FROM outbox.task`)
		once(t, db, reg, relay.Config{Workers: 1}) // two workers share the tasks where both claim at once
		if got, want := calls.calls, []string{"1.1 2.1 3.1 4.1 5.1 6.1 7.1 8.1 "}; !slices.Equal(got, want) {
			t.Errorf("calls %q, want %q", got, want)
		}
		got := db.Text(t, `SELECT string_agg(n || ':' || COALESCE(
			  (SELECT 'effect' FROM effect e WHERE e.task_id = s.task_id),
			  (SELECT attempt || ' in ' || round(extract(epoch FROM run_at - clock_timestamp()) / 60) || ' min ' || COALESCE(last_error, '') FROM outbox.task k WHERE k.task_id = s.task_id),
			  (SELECT 'dead ' || attempt || ' ' || reason FROM outbox.dead_task d WHERE d.task_id = s.task_id), 'done'), ', ' ORDER BY n) FROM seen s`)
		want := "1:effect, 2:1 in 60 min boom, 3:1 in 5 min retry after 5m0s: boom, 4:0 in 5 min , 5:dead 1 handler, 6:done, 7:effect, 8:effect"
		if got != want {
			t.Errorf("the tasks ended as\n%s, want\n%s", got, want)
		}
	})
}

// A payload that does not decode is its own task's failure, whatever the handler says of the others.
func TestABadPayloadInABatchFailsOnlyItsOwnTask(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		result error // of the handler
		calls  []string
	}{
		"nil":     {nil, []string{"1.1 2.1 4.1 5.1 "}},
		"Discard": {handlers.Discard(errors.New("enough")), []string{"1.1 2.1 4.1 5.1 ", "1.1 ", "2.1 ", "4.1 ", "5.1 "}}, // not for all
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			reg, calls := handlers.New(), &batchCalls{}
			handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
				calls.record(tasks)
				return errors.Join(batchEffect(ctx, tx, tasks), c.result)
			}, handlers.MaxAttempts(2), retrySoon())
			db.Do(t, `INSERT INTO outbox.task (task_type, payload)
				SELECT 'BATCH', CASE WHEN n = 3 THEN '{"n": "SECRET"}' ELSE jsonb_build_object('n', n) END FROM generate_series(1, 5) n`)
			// With one worker the calls have an order.
			r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
			db.Emptied(t, 30*time.Second)
			if !slices.Equal(calls.calls, c.calls) {
				t.Errorf("calls %q, want %q", calls.calls, c.calls)
			}
			if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); n != 4 || db.Int(t, `SELECT count(*) FROM effect`) != 4 {
				t.Errorf("effects of %d tasks, want one of 4 each", n)
			}
			if got, want := db.Text(t, `SELECT attempt || ' ' || reason || ' ' || (payload->>'n') FROM outbox.dead_task`), "2 attempts SECRET"; got != want {
				t.Errorf("the dead letter is %q, want %q", got, want)
			}
			if n := r.Log.Count("SECRET") + db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE last_error LIKE '%SECRET%'`); n != 0 {
				t.Errorf("the payload is in a log or an error")
			}
		})
	}
}

// Tasks without attempts left are not started, even in a batch with others: somebody lowered their limit.
func TestATaskThatHasUsedItsAttemptsIsNotStartedInABatch(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, calls := handlers.New(), &batchCalls{}
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		calls.record(tasks)
		return batchEffect(ctx, tx, tasks)
	})
	db.Enqueue(t, "BATCH", 4)
	db.Do(t, `UPDATE outbox.task SET attempt = 2, max_attempts = 2 WHERE payload->>'n' = '2'`)
	once(t, db, reg, relay.Config{Workers: 1})
	if got, want := calls.calls, []string{"1.1 3.1 4.1 "}; !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 2 AND payload->>'n' = '2'`); n != 1 {
		t.Errorf("no dead letter\n%s", db.Dump(t))
	}
}

// A trigger of the app's on the outbox's table may drop what the relay writes back, without an error.
func TestATaskWhoseWriteBackIsDroppedIsNotLost(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
	db.Do(t, `CREATE TRIGGER nothing BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.state = 'scheduled' AND NEW.attempt > 0) EXECUTE FUNCTION nothing()`)
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return errors.Join(txEffect(ctx, tx, task), errors.New("boom"))
	}, handlers.MaxAttempts(2), retrySoon())
	db.Enqueue(t, "TX", 1)
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 60*time.Second)
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 2`); n != 1 {
		t.Errorf("the task is not in the dead letters\n%s", db.Dump(t))
	}
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects of a failed handler", n)
	}
}
