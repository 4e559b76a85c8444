package outboxtest_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

func TestTasksRunByPriorityAttemptAndIDOfAllTypes(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		var order []int
		reg := handlers.New()
		note := func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			order = append(order, task.Payload.N)
			return nil
		}
		onTx(reg, "A", note)
		onTx(reg, "B", note)
		onTx(reg, "LESS", note, handlers.Priority(10))
		onLeased(reg, "LEASED", func(ctx context.Context, task *outbox.Task[payload]) error {
			return note(ctx, nil, task)
		})
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, priority, attempt) VALUES
			('LESS', '{"N": 7}', -4, 0), ('B', '{"N": 6}', 5, 1), ('A', '{"N": 3}', 0, 0), ('B', '{"N": 4}', 0, 0), ('LEASED',
			'{"N": 2}', -1, 0), ('A', '{"N": 5}', 5, 0), ('LESS', '{"N": 1}', -20, 0)`)
		if r := outboxtest.Drain(t, in, handlers.New()); len(r.Runs) != 0 || r.Unhandled["A"] != 2 {
			t.Errorf("without handlers: %v", r)
		}
		result := outboxtest.Drain(t, in, reg)
		if got := fmt.Sprint(order); got != "[1 2 3 4 5 6 7]" || len(result.Runs) != 7 ||
			result.Count(relay.OutcomeDone) != 7 {
			t.Errorf("the order was %v: %v", got, result)
		}
		if err := result.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A task that fails gives its place to the next of its key, and gets one again.
func TestTasksOfAGroupKeyRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		var order []int
		reg := handlers.New()
		onTx(reg, "GROUPED", func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			order = append(order, task.Payload.N)
			if task.Payload.N == 1 && task.Attempt == 1 {
				return errBoom
			}
			return nil
		})
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, group_key)
			SELECT 'GROUPED', jsonb_build_object('N', n), 'k' FROM generate_series(1, 3) n`)
		outboxtest.Drain(t, in, reg, outboxtest.RetryNow())
		slices.Sort(order)
		if got := fmt.Sprint(order); got != "[1 1 2 3]" {
			t.Errorf("tasks ran as %s", got)
		}
	})
}

func TestFailedTasksRunAgainAtOnceUntilDoneOrDead(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		hour := handlers.Backoff(relaytest.Constant(time.Hour))
		onTx(reg, "NEVER", func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			exec(t, tx, `INSERT INTO effect VALUES ('never')`)
			return errBoom
		}, handlers.MaxAttempts(4), hour)
		onTx(reg, "THIRD", func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if task.Attempt < 3 {
				return fmt.Errorf("attempt %d: %w", task.Attempt, errBoom)
			}
			exec(t, tx, `INSERT INTO effect VALUES ($1)`, "third after "+task.LastError)
			return nil
		}, hour)
		handlers.Batch(reg, outbox.NewTaskType[payload]("BATCH"), 3,
			func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					if task.Payload.N == 2 && task.Attempt < 2 {
						return errBoom
					}
				}
				return nil
			}, hour)
		onTx(reg, "SNOOZES", returns(handlers.Snooze(time.Hour)))
		enqueue(t, in, "NEVER", 1)
		enqueue(t, in, "THIRD", 1)
		enqueue(t, in, "BATCH", 1, 2, 3)
		enqueue(t, in, "SNOOZES", 1)
		wantRuns(t, "NEVER 1 failed, THIRD 1 failed, BATCH 1 done, BATCH 1 failed, BATCH 1 done, SNOOZES 1 snoozed",
			outboxtest.Drain(t, in, reg))
		wantRuns(t, "", outboxtest.Drain(t, in, reg, outboxtest.RetryNow())) // what failed before is not due
		exec(t, in, `UPDATE outbox.task SET state = 'ready' WHERE task_type <> 'SNOOZES'`)
		second := outboxtest.Drain(t, in, reg, outboxtest.RetryNow())
		wantRuns(t, "NEVER 2 failed, THIRD 2 failed, BATCH 2 done, NEVER 3 failed, THIRD 3 done, NEVER 4 dead", second)
		if err := second.Err(); !errors.Is(err, errBoom) || !strings.Contains(err.Error(), "attempt 4: dead: boom") {
			t.Errorf("Err is %v", err)
		}
		wantText(t, in, "third after attempt 2: boom", `SELECT string_agg(note, ' ') FROM effect`)
		wantText(t, in, "NEVER 4 attempts", `SELECT string_agg(task_type || ' ' || attempt || ' ' || reason, ' ')
			FROM outbox.dead_task`)
	})
}

func TestWhatFailsOrSnoozesDoesNotRunAgainHoweverSoonItIsDue(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "A_FAILS", returns(errBoom), handlers.Backoff(relaytest.Constant(time.Microsecond)))
		onTx(reg, "A_SNOOZES", returns(handlers.Snooze(time.Microsecond)))
		onTx(reg, "B_FAILS", returns(errBoom), handlers.Backoff(relaytest.Constant(0)))
		onTx(reg, "C_WAITS", returns(handlers.RetryAfter(1, errBoom)))
		onTx(reg, "WAITS", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
			_, err := tx.ExecContext(ctx, `SELECT pg_sleep(0.01)`) // both are due by then
			return err
		})
		for _, name := range []string{"A_FAILS", "A_SNOOZES", "B_FAILS", "C_WAITS", "WAITS"} {
			enqueue(t, in, name, 1)
		}
		wantRuns(t, "A_FAILS 1 failed, A_SNOOZES 1 snoozed, B_FAILS 1 failed, C_WAITS 1 throttled, WAITS 1 done",
			outboxtest.Drain(t, in, reg))
		exec(t, in, `UPDATE outbox.task SET run_at = created_at`)
		wantRuns(t, "A_SNOOZES 1 snoozed, C_WAITS 1 throttled, A_FAILS 2 failed, B_FAILS 2 failed",
			outboxtest.Drain(t, in, reg))
	})
}

func TestADrainsClockGoesThroughDelaysSnoozesAndBackoffs(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		var start time.Time
		var log []string
		note := func(task *outbox.Task[payload]) {
			log = append(log, fmt.Sprintf("%s at %v", task.Type, task.RunAt.Sub(start).Round(time.Minute)))
		}
		onTx(reg, "ONCE", func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { note(task); return nil })
		onTx(reg, "HOURLY", func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			note(task)
			return handlers.Snooze(time.Hour)
		})
		onLeased(reg, "FAILS", func(_ context.Context, task *outbox.Task[payload]) error {
			note(task)
			return errBoom
		}, handlers.Backoff(relaytest.Constant(80*time.Minute)), handlers.NoJitter())
		// The next times are counted from the drain's clock.
		drain := func(ran, left string, options func() []outboxtest.DrainOption) {
			t.Helper()
			if err := in.QueryRowContext(t.Context(), `SELECT clock_timestamp()`).Scan(&start); err != nil {
				t.Fatal(err)
			}
			log = nil
			exec(t, in, `DELETE FROM outbox.task`)
			enqueue(t, in, "HOURLY", 1)
			enqueue(t, in, "FAILS", 2)
			exec(t, in, `INSERT INTO outbox.task (task_type, run_at) SELECT 'ONCE', clock_timestamp() + n * interval '1 minute'
				FROM unnest('{30,90,200}'::int[]) n`)
			outboxtest.Drain(t, in, reg, options()...)
			if got := strings.Join(log, ", "); got != ran {
				t.Errorf("it ran %s\nwant %s", got, ran)
			}
			wantText(t, in, left, `SELECT string_agg(concat_ws(' ', task_type, round(extract(epoch
				FROM run_at - $1::timestamptz) / 60), attempt), ', ' ORDER BY run_at) FROM outbox.task`, start)
		}
		drain("HOURLY at 0s, FAILS at 0s, ONCE at 30m0s, HOURLY at 1h0m0s, FAILS at 1h20m0s, ONCE at 1h30m0s, HOURLY at 2h0m0s",
			"FAILS 160 2, HOURLY 180 0, ONCE 200 0",
			func() []outboxtest.DrainOption {
				return []outboxtest.DrainOption{outboxtest.Advance(150 * time.Minute)}
			})
		drain("HOURLY at 0s, FAILS at 0s, ONCE at 30m0s, HOURLY at 1h0m0s",
			"FAILS 80 1, ONCE 90 0, HOURLY 120 0, ONCE 200 0", func() []outboxtest.DrainOption {
				return []outboxtest.DrainOption{outboxtest.Advance(time.Millisecond), outboxtest.Advance(70 * time.Minute)}
			})
		drain("HOURLY at 0s, FAILS at 0s", "ONCE 30 0, HOURLY 60 0, FAILS 80 1, ONCE 90 0, ONCE 200 0",
			func() []outboxtest.DrainOption { return nil })
	})
}

func TestAnEndlessLoopOfTasksFailsTheTest(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "LOOP", func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			_, err := outbox.NewTaskType[payload]("LOOP").Enqueue(ctx, tx, payload{task.Payload.N + 1})
			return err
		})
		enqueue(t, in, "LOOP", 1)
		wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Drain(t, in, reg, outboxtest.MaxRuns(10)) }),
			"stopped after 10 runs", "enqueue each other", "MaxRuns", "LOOP #", "attempt 1: done")
	})
}

// A run whose task is gone without having been done is in the test's log, as Err does not tell of
// it. It does not fail the test.
func TestADrainLogsWhatFailedDiedOrWasDiscarded(t *testing.T) {
	t.Parallel()
	tx := begin(t, newDB(t, "postgres"))
	reg := handlers.New()
	for name, err := range map[string]error{
		"DONE": nil, "SNOOZES": handlers.Snooze(time.Hour), "FAILS": errBoom, "DIES": handlers.Dead(errors.New("no hope")), "IS_DISCARDED": handlers.Discard(errors.New("no need")),
	} {
		onTx(reg, name, func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return err })
		enqueue(t, tx, name, 1)
	}
	var result *outboxtest.Result
	log := failing(t, func(t testing.TB) { result = outboxtest.Drain(t, tx, reg) })
	all := strings.Join(log.logs, "\n")
	for _, want := range []string{"FAILS #", "attempt 1: failed: boom", "DIES", "no hope", "IS_DISCARDED", "no need"} {
		if !strings.Contains(all, want) {
			t.Errorf("it logs, without %q,\n%s", want, all)
		}
	}
	if log.failed || len(log.logs) != 3 {
		t.Errorf("failed %t; it logs\n%s", log.failed, all)
	}
	for _, run := range result.Runs {
		if run.Type == "DONE" && run.Err != nil || run.Type == "FAILS" && !errors.Is(run.Err, errBoom) {
			t.Errorf("the error of %s is %v", run.Type, run.Err)
		}
	}
}

// Handlers get the key that a relay would give them, and the test can ask for it.
func TestTasksHaveTheirKeys(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg, seen := handlers.New(), ""
		onTx(reg, "SEND", func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
			seen = task.Key()
			return nil
		})
		enqueue(t, in, "SEND", 1)
		key := outboxtest.RequireEnqueued(t, in, send, nil)[0].Key()
		outboxtest.Drain(t, in, reg)
		if seen != key || strings.HasPrefix(key, "00000000") {
			t.Errorf("the handler saw %s, want %s", seen, key)
		}
	})
}

// A test that is pointed at a restored dump does not send the tasks that wait in it.
func TestDrainRunsNothingInACopy(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		enqueue(t, tx, "TX", 1)
		exec(t, tx, `UPDATE outbox.origin SET system_id = system_id + 1, table_oid = 1`)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.Drain(t, tx, handlers.New())
		}), "this database may be a copy", "outbox adopt -keep-id")
		wantText(t, tx, "1", `SELECT count(*) FROM outbox.task`)
	})
}

// A Drain's clock shows an app's test that a rate limit of hours kills nothing, and that one without an
// end does after three days.
func TestADrainsClockGoesThroughRateLimits(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "TX", returns(handlers.RetryAfter(10*time.Minute, errBoom)), handlers.MaxAttempts(3), handlers.NoJitter())
		onLeased(reg, "LEASED", func(context.Context, *outbox.Task[payload]) error {
			return handlers.RetryAfter(2*time.Hour, errBoom)
		}, handlers.MaxAttempts(3))
		enqueue(t, in, "TX", 1)
		result := outboxtest.Drain(t, in, reg, outboxtest.Advance(6*time.Hour-time.Minute))
		if result.Count(relay.OutcomeThrottled) != 36 || len(result.Runs) != 36 || result.Err() != nil {
			t.Errorf("six hours: %v", result)
		}
		exec(t, in, `DELETE FROM outbox.task`)
		enqueue(t, in, "LEASED", 1)
		result = outboxtest.Drain(t, in, reg, outboxtest.Advance(100*time.Hour))
		throttled := result.Count(relay.OutcomeThrottled)
		if throttled < 30 || throttled > 37 || result.Count(relay.OutcomeFailed) != 2 || result.Count(relay.OutcomeDead) != 1 {
			t.Errorf("four days: %v", result)
		}
	})
}

// features registers, for each kind of handler, types whose tasks run again, are kept and ordered.
func features(reg *handlers.Registry) {
	all := func(name string, f func(task *outbox.Task[payload]) error, opts ...handlers.Option) {
		ofEachKind(reg, name, 1, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			return f(tasks[0])
		}, opts...)
	}
	keep := handlers.Retention(30 * time.Minute)
	all("AGAIN", func(task *outbox.Task[payload]) error {
		if task.Iterations < 2 {
			return handlers.RunAgain(0)
		}
		return handlers.RunAgainWith(task, time.Hour, payload{task.Payload.N + 10})
	}, keep)
	all("AGAIN_AND_DONE", func(task *outbox.Task[payload]) error {
		if task.Iterations < 3 {
			return handlers.RunAgainWith(task, 0, payload{task.Payload.N + 1})
		}
		return nil
	}, keep)
	all("KEPT", func(task *outbox.Task[payload]) error { return nil }, keep)
	all("KEPT_IF_DONE", func(task *outbox.Task[payload]) error { return errBoom }, keep)
	all("ORDERED", func(task *outbox.Task[payload]) error {
		switch task.Payload.N {
		case 2:
			return errBoom // holds key 1 up; leaves key 2
		case 4:
			return handlers.Dead(errBoom)
		case 5:
			return handlers.Snooze(time.Hour)
		}
		return nil
	})
	onLeased(reg, "EXTENDS", func(ctx context.Context, task *outbox.Task[payload]) error {
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if end, _ := ctx.Deadline(); time.Until(end) < 45*time.Second {
			return fmt.Errorf("the context ends at %v", end)
		}
		return task.Complete(ctx, func(*sql.Tx) error { return nil })
	}, handlers.Timeout(30*time.Second))
}

func enqueueFeatures(t testing.TB, q outbox.Querier) {
	t.Helper()
	for _, kind := range []string{"TX", "BATCH", "LEASED", "COMPLETE"} {
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, ordering_key, skip_failed)
			SELECT $1 || '_ORDERED', jsonb_build_object('N', n), key, key = 2
			FROM unnest('{1,2,3}'::int[]) n, generate_series(1, 2) key
			 UNION ALL SELECT $1 || '_ORDERED', jsonb_build_object('N', n), 3, false FROM unnest('{4,5,6}'::int[]) n`, kind)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, unique_key, unique_until_done) SELECT $1 || '_' || name,
			'{"N": 7}', $1 || i / 2, i < 2
			FROM unnest('{KEPT,AGAIN,KEPT_IF_DONE}'::text[]) name, generate_series(0, 3) i`, kind)
	}
}

// A pause is asked for by the statement that claims, as by a relay.
func TestADrainLeavesPausedTypesAlone(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "TX", returns(nil))
		onTx(reg, "PAUSED", returns(nil))
		exec(t, in, `INSERT INTO outbox.task_type (task_type, paused) VALUES ('PAUSED', true)
			ON CONFLICT (task_type) DO UPDATE SET paused = true`)
		exec(t, in, `INSERT INTO outbox.task (task_type) VALUES ('PAUSED'), ('TX')`)
		wantRuns(t, "TX 1 done", outboxtest.Drain(t, in, reg))
		exec(t, in, `UPDATE outbox.task_type SET paused = false`)
		wantRuns(t, "PAUSED 1 done", outboxtest.Drain(t, in, reg))
	})
}

// A key's next task runs in the same Drain, in the order of the ids whatever their priority; an
// iteration in the future is for Advance.
func TestADrainRunsWholeKeysAndIterations(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		features(reg)
		// More keys than a relay promotes the heads of at once, and none of the first may run yet.
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, ordering_key, run_at) SELECT 'LATER', '{}', n,
			now() + interval '2 days' FROM generate_series(1, 1500) n`)
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, ordering_key, priority) SELECT 'TX_KEPT',
			jsonb_build_object('N', n), 'k', -n FROM generate_series(1, 3) n`)
		r := outboxtest.Drain(t, in, reg)
		if len(r.Runs) != 3 || !slices.IsSortedFunc(r.Runs,
			func(a, b outboxtest.Run) int { return cmp.Compare(a.ID, b.ID) }) {
			t.Errorf("out of order: %v", r)
		}
		enqueue(t, in, "TX_AGAIN", 1)
		wantRuns(t, "TX_AGAIN 1 run_again, TX_AGAIN 1 run_again, TX_AGAIN 1 run_again", outboxtest.Drain(t, in, reg))
		wantText(t, in, `3 {"N": 11} 0`, `SELECT concat_ws(' ', iterations, payload, attempt) FROM outbox.task
			WHERE task_type = 'TX_AGAIN'`)
		wantRuns(t, "TX_AGAIN 1 run_again, TX_AGAIN 1 run_again", outboxtest.Drain(t, in, reg, outboxtest.Advance(150*time.Minute)))
	})
}

// What is late by the drain's clock has expired by it, too, unless an attempt was counted.
func TestTasksExpireByADrainsClock(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New(handlers.Backoff(relaytest.Constant(65*time.Minute)), handlers.NoJitter())
		ofEachKind(reg, "SNOOZES", 1, gives(handlers.Snooze(time.Hour)))
		onTx(reg, "FAILS", returns(errBoom), handlers.MaxAttempts(4))
		for _, name := range []string{"TX_SNOOZES", "LEASED_SNOOZES", "FAILS"} {
			exec(t, in, `INSERT INTO outbox.task (task_type, payload, expires_at)
				VALUES ($1, '{"N": 1}', clock_timestamp() + interval '90 minutes')`, name)
		}
		wantRuns(t, "TX_SNOOZES 1 snoozed, LEASED_SNOOZES 1 snoozed, FAILS 1 failed, TX_SNOOZES 1 snoozed, "+
			"LEASED_SNOOZES 1 snoozed, FAILS 2 failed, TX_SNOOZES 1 dead, LEASED_SNOOZES 1 dead, FAILS 3 failed",
			outboxtest.Drain(t, in, reg, outboxtest.Advance(150*time.Minute)))
		wantText(t, in, "2", `SELECT count(*) FROM outbox.dead_task WHERE reason = 'expired'`)
	})
}

type contextKey struct{}

// As of the context that Run of a relay gets.
func TestHandlersGetTheValuesOfADrainsContext(t *testing.T) {
	t.Parallel()
	tx := begin(t, newDB(t, "postgres"))
	reg, seen := handlers.New(), 0
	ofEachKind(reg, "SEES", 1, func(ctx context.Context, _ *sql.Tx, _ []*outbox.Task[payload]) error {
		if ctx.Value(contextKey{}) == "app" {
			seen++
		}
		return nil
	})
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) SELECT kind || '_SEES', '{"N": 1}'
		FROM unnest('{TX,BATCH,LEASED,COMPLETE}'::text[]) kind`)
	ctx := context.WithValue(t.Context(), contextKey{}, "app")
	r := outboxtest.Drain(t, tx, reg, outboxtest.Context(ctx))
	if r.Count(relay.OutcomeDone) != 4 || seen != 4 {
		t.Errorf("%d handlers got the value, want 4: %v", seen, r)
	}
}

// Results of a drain are in the history, as with a relay. Progress is checked.
func TestDrainKeepsResults(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		double := func(ctx context.Context, task *outbox.Task[payload]) error {
			if err := task.SetProgress(ctx, 2, ""); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("a wrong fraction: %v", err)
			}
			return errors.Join(task.SetProgress(ctx, 0.5, "half"), task.SetResult(2*task.Payload.N))
		}
		onTx(reg, "TX", func(ctx context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return double(ctx, task) },
			handlers.Retention(time.Hour))
		onLeased(reg, "LEASED", double, handlers.Retention(time.Hour))
		onLeased(reg, "COMPLETES", func(ctx context.Context, task *outbox.Task[payload]) error {
			return task.Complete(ctx, func(*sql.Tx) error { return double(ctx, task) })
		}, handlers.Retention(time.Hour))
		for n, name := range []string{"TX", "LEASED", "COMPLETES"} {
			exec(t, in, `INSERT INTO outbox.task (task_type, payload) VALUES ('`+name+`', '{"N": `+fmt.Sprint(n+1)+`}')`)
		}
		for _, run := range outboxtest.Drain(t, in, reg).Runs {
			got, err := outbox.Result[int](t.Context(), in, run.ID)
			if want := map[string]int{"TX": 2, "LEASED": 4, "COMPLETES": 6}[run.Type]; got != want || err != nil {
				t.Errorf("%s: %d, %v, want %d", run.Type, got, err, want)
			}
		}
	})
}

// A unit test sees what a handler notes of a task that it made.
func TestNotesOfATaskThatATestMade(t *testing.T) {
	t.Parallel()
	typ := outbox.NewTaskType[int]("T")
	for name, lease := range map[string]*outboxtest.Lease{"tx": nil, "leased": {}} {
		task := outboxtest.NewTask(t, typ, 1, lease)
		err := errors.Join(task.SetProgress(t.Context(), 0.5, "half"), task.SetResult("done"))
		n := outboxtest.NotesOf(task)
		if got := fmt.Sprint(n.Fraction, n.Message, string(n.Result)); err != nil || got != `0.5half"done"` {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if err := task.SetResult(nil); err != nil || outboxtest.NotesOf(task).Result != nil {
			t.Errorf("%s: nil is no result: %v", name, err)
		}
	}
	if n := outboxtest.NotesOf(&outbox.Task[int]{}); n.Message != "" || n.Result != nil {
		t.Errorf("of another task: %v", n)
	}
	if err := (&outbox.Task[int]{}).SetResult(1); !errors.Is(err, outbox.ErrNotRunning) {
		t.Errorf("a task that no relay runs: %v", err)
	}
}
