package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func (db *database) taskState(t testing.TB) string {
	t.Helper()
	return db.Text(t, `SELECT string_agg(concat_ws(' ', state, attempt, CASE WHEN lease_token IS NOT NULL THEN 'token' END,
		CASE WHEN relay_id IS NOT NULL THEN 'relay' END, CASE WHEN leased_until IS NOT NULL THEN 'until' END), ', '
		ORDER BY task_id) FROM outbox.task`)
}

func TestALeasedHandlerEndsWithItsTimeoutWhichIsAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ended, said := make(chan error, 1), make(chan error, 2)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		said <- task.Extend(ctx, time.Second)
		said <- task.Complete(ctx, func(*sql.Tx) error { return nil })
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}, handlers.Timeout(100*time.Millisecond), handlers.Backoff(constant(time.Hour))), fastPoll)
	db.Enqueue(t, "LEASED", 1)
	eventually(t, 20*time.Second, "the failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
	if cause := <-ended; !errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("the context ended by %v", cause)
	}
	for range cap(said) {
		if err := <-said; err == nil || strings.Count(err.Error(), "relay: ") > 1 {
			t.Errorf("Extend or Complete with that context: %v", err)
		}
	}
	db.want(t, "interrupted: context deadline exceeded", "last_error", `SELECT last_error FROM outbox.task`)
}

func TestADrainedLeasedTaskIsHandedBackWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	causes := make(chan error, 3)
	begun := make(chan struct{}, 3)
	r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		if task.Payload.N == 2 {
			return nil
		}
		return ctx.Err()
	}), relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond, DrainTimeout: 50 * time.Millisecond})
	// The third is a suspect: its relay died. It stays one, as its run has not shown that it is
	// harmless.
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, attempt, relay_id)
		VALUES ('LEASED', '{"N": 1}', 0, NULL), ('LEASED', '{"N": 2}', 0, NULL), ('LEASED', '{"N": 3}', 4,
		'00000000-0000-4000-8000-000000000000')`)
	for range 3 {
		<-begun
	}
	r.Stop()
	for range 3 {
		if cause := <-causes; !errors.Is(cause, outbox.ErrDraining) {
			t.Errorf("the handler's context ended by %v, want ErrDraining", cause)
		}
	}
	if got := db.taskState(t); got != "ready 0, ready 4 relay" {
		t.Errorf("after the drain: %s", got)
	}
	db.want(t, "1 3", "left", `SELECT string_agg(payload ->> 'N', ' ' ORDER BY task_id) FROM outbox.task`)
	once(t, db, leased(leasedEffect), relay.Config{})
	db.want(t, "1 5", "done in attempts", `SELECT string_agg(attempt::text, ' ' ORDER BY task_id) FROM effect`)
}

func testLateHeartbeat(t *testing.T) {
	db := newDatabase(t)
	begun, done := make(chan struct{}), make(chan struct{})
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		close(begun)
		<-done
		return leasedEffect(ctx, task)
	}), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	<-begun
	db.Do(t, `UPDATE outbox.relay SET alive_until = clock_timestamp() - interval '1 minute'`)
	db.becomes(t, 10*time.Second, 1, "the relay renews its leases", `SELECT count(*) FROM outbox.relay
		WHERE alive_until > clock_timestamp() + interval '5 seconds'`)
	close(done)
	db.Emptied(t, 10*time.Second)
	db.OnceEach(t, 1)
	db.want(t, 1, "done in attempt", `SELECT attempt FROM effect`)
}

// A place is a hint: a task that was moved is ended all the same, and one that is at its place by
// now is not.
func TestEndsOfLeasesFollowTheTaskAndNotItsPlace(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 5)
	db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = $1, lease_token = $1`, someUUID)
	first := db.Int(t, `SELECT min(task_id) FROM outbox.task`)
	place := func(n int) string {
		return db.Text(t, `SELECT ctid::text FROM outbox.task WHERE task_id = $1`, first+n)
	}
	old := place(0)
	db.Do(t, `UPDATE outbox.task SET leased_until = clock_timestamp() + interval '1 hour' WHERE task_id = $1`, first)
	if place(0) == old {
		t.Fatal("the update has not moved the task")
	}
	// The second task's place is said to be that of the third one, which has the same token and
	// goes on. Of the last two, one is where its claim had it, but has the token of another claim,
	// as has the one whose place is not known.
	ids, places := pq.Array([]int{first, first + 1, first + 3,
		first + 4}), `{"`+old+`","`+place(2)+`","`+place(3)+`","(0,0)"}`
	db.want(t, fmt.Sprintf("%d %d", first+3, first+4), "lost, as their token is another",
		`SELECT string_agg(f::text, ' ') FROM (`+store.FinishSQL+`) f (f)`,
		ids, places, pq.Array([]string{someUUID, strings.Replace(someUUID, "0", "1", 1)}), "{1,1,2,2}")
	db.want(t, "2 3 4", "left", `SELECT string_agg((task_id - $1)::text, ' ' ORDER BY task_id) FROM outbox.task`, first)
}

var fastPoll = relay.Config{PollInterval: 100 * time.Millisecond}

// F42 and the two-table queue's "extending in the middle of work". An extension ends as well.
func TestExtendKeepsAHandlerBeyondItsTimeout(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	type limit struct {
		opt  handlers.Option
		err  error
		lost bool
	}
	together(t, map[string]limit{
		"timeout":      {handlers.Timeout(5 * time.Second), context.DeadlineExceeded, false},
		"no heartbeat": {handlers.NoHeartbeat(5 * time.Second), context.Canceled, true},
	}, func(t *testing.T, _ string, c limit) {
		db, ended := newDatabase(t), make(chan struct{})
		run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			defer close(ended)
			derived, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			begun, asked := time.Now(), db.Text(t, `SELECT clock_timestamp()`)
			if err := task.Extend(ctx, 6*time.Second); err != nil {
				t.Error(err)
			}
			db.wantRows(t, 1, `outbox.task WHERE leased_until >= $1::timestamptz + interval '6 s'`, asked)
			if end, _ := derived.Deadline(); end.Before(begun.Add(6 * time.Second)) {
				t.Errorf("the deadline of a derived context is %v after the extension by 6 s", end.Sub(begun))
			}
			if err := task.Extend(ctx, time.Millisecond); err != nil { // does not shorten
				t.Error(err)
			}
			<-derived.Done()
			if after := time.Since(begun); after < 6*time.Second || relaytest.Timing && after > 10*time.Second {
				t.Errorf("it ended after %v, want 6 s", after)
			}
			cause, again := context.Cause(derived), task.Extend(context.Background(), time.Second)
			if !errors.Is(ctx.Err(), c.err) || !errors.Is(derived.Err(), c.err) || again == nil ||
				errors.Is(cause, outbox.ErrLeaseLost) != c.lost || errors.Is(again, outbox.ErrLeaseLost) != c.lost {
				t.Errorf("ended with %v, a derived context with %v, cause %v; Extend after the end: %v",
					ctx.Err(), derived.Err(), cause, again)
			}
			return ctx.Err()
		}, c.opt, handlers.Backoff(constant(time.Hour)), handlers.NoJitter()), fastPoll)
		db.Enqueue(t, "LEASED", 1)
		<-ended
		// The run was an attempt, also where the lease ran out: else it would go on for ever.
		eventually(t, 10*time.Second, "the failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
	})
}

// The handler ignores the end of its context. A relay takes nothing over before it has beaten for
// 10 s.
func testWithoutHeartbeatsALeaseIsTakenOver(t *testing.T) {
	db := newDatabase(t)
	release := make(chan struct{})
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if task.Attempt == 1 {
			<-release // until it is abandoned, 5 s after the end
			return errors.New("stale")
		}
		return leasedEffect(ctx, task)
	}, handlers.NoHeartbeat(11*time.Second)), relay.Config{Workers: 2, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	db.Emptied(t, 30*time.Second)
	close(release)
	db.wantText(t, "2", `SELECT string_agg(attempt::text, ' ') FROM effect`)
}

func TestExtendAfterTheLossOfTheLease(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		got := make(chan error, 3)
		run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			if task.Attempt == 2 {
				return nil
			}
			db.Do(t, `UPDATE outbox.task SET state = 'ready', relay_id = NULL, lease_token = NULL, leased_until = NULL`)
			got <- task.Extend(ctx, time.Minute)
			got <- context.Cause(ctx)
			got <- task.Extend(context.Background(), time.Minute)
			return ctx.Err()
		}), fastPoll)
		db.Enqueue(t, "LEASED", 1)
		for i := range 3 {
			if err := <-got; !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("%d: got %v, want ErrLeaseLost", i, err)
			}
		}
		db.Emptied(t, 10*time.Second)
	})
}

func TestExtendRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		for _, d := range []time.Duration{-1, 0, time.Microsecond, outbox.MaxTimeout + 1} {
			if err := task.Extend(ctx, d); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("Extend(%v): %v, want ErrInvalidOption", d, err)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := task.Extend(ended, time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		// A driver whose statement is cancelled may say no more than "bad connection".
		why, release := errors.New("the caller's own reason"), hold(t, db, `SELECT FROM outbox.task FOR UPDATE`)
		short, end := context.WithTimeoutCause(ctx, 100*time.Millisecond, why)
		if err := task.Extend(short, time.Second); !errors.Is(err, why) {
			t.Errorf("under a context that ended in the middle: %v, want %v", err, why)
		}
		end()
		release()
		if err := task.Extend(ctx, outbox.MaxTimeout); err != nil {
			t.Errorf("without a timeout: %v", err)
		}
		if _, has := ctx.Deadline(); has || db.taskState(t) != "leased 1 token relay" {
			t.Errorf("a run without a limit has one after Extend: %s", db.taskState(t))
		}
		return task.Complete(ctx, func(*sql.Tx) error {
			if err := task.Extend(ctx, time.Second); err == nil {
				t.Error("no error inside Complete, which holds the row")
			}
			return nil
		})
	}, handlers.Timeout(-1)), fastPoll)
	db.Enqueue(t, "LEASED", 1)
	db.Emptied(t, 10*time.Second)
	other := &outbox.Task[payload]{}
	for _, err := range []error{other.Extend(t.Context(), time.Second),
		other.Complete(t.Context(), func(*sql.Tx) error { return nil })} {
		if !errors.Is(err, outbox.ErrNotLeased) {
			t.Errorf("of a task that is not leased: %v, want ErrNotLeased", err)
		}
	}
}

// I4: another relay has taken the task over and runs it.
func TestCompleteAfterTheLossOfTheLease(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		got := make(chan error, 1)
		r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			db.takenOver(t)
			err := task.Complete(context.WithoutCancel(ctx),
				func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 1) })
			got <- err
			return err
		}), fastPoll)
		db.Enqueue(t, "LEASED", 1)
		if err := <-got; !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("Complete returned %v, want ErrLeaseLost", err)
		}
		r.Stop()
		db.wantRows(t, 1, `outbox.task WHERE lease_token = $1`, someUUID)
		db.wantRows(t, 0, `effect`)
	})
}

// In one transaction: whoever sees the effect does not see the task any more.
func TestCompleteCommitsItsWritesWithTheRemovalOfTheTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE removal (task_id bigint, tx xid8);
		ALTER TABLE effect ADD COLUMN tx xid8 DEFAULT pg_current_xact_id();
		CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removal
		VALUES (OLD.task_id, pg_current_xact_id()); RETURN NULL; END $$;
		CREATE TRIGGER removed AFTER DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION removed()`)
	db.Enqueue(t, "LEASED", 1)
	log := once(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		first := leasedEffect(ctx, task)
		second := task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 2) })
		if first != nil || !errors.Is(second, outbox.ErrLeaseLost) {
			t.Errorf("Complete returned %v, and then %v, want ErrLeaseLost", first, second)
		}
		return errors.New("what a handler returns after it completed its task does not matter")
	}), relay.Config{})
	db.wantRows(t, 1, `effect e JOIN removal r ON r.tx = e.tx AND r.task_id = e.task_id`)
	db.wantRows(t, 0, `outbox.task`)
	db.OnceEach(t, 1)
	if strings.Contains(log, "a lease was lost") {
		t.Errorf("the relay tried to end a lease again that had ended:\n%s", log)
	}
}

// After an error nothing of its function is kept, the task is still leased and the handler's result
// decides. What its function committed stands, and then the handler's result has no effect.
func TestTheHandlersResultDecidesOnlyWhileCompleteHasNotEndedTheTask(t *testing.T) {
	t.Parallel()
	errFn, errLater := errors.New("no"), errors.New("later")
	ends := func(statement string, result error) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.Exec(statement)
			return errors.Join(err, result)
		}
	}
	cases := map[string]struct {
		fn, then func(*sql.Tx) error // fn is nil: the task runs again; then is given to a second call
		result   error
		complete string // in the text of the first call's error; "" for nil
		want     string
	}{
		"nil":       {fn: ends(``, nil), result: errLater, want: "1 effects, kept as done"},
		"run again": {result: errLater, want: `1 effects, iteration 1 attempt 0 {"N": 7}`},
		"rollback, again": {fn: ends(`ROLLBACK AND CHAIN`, nil), then: ends(`SELECT 1`, nil),
			complete: "rolled its transaction back", want: "1 effects, kept as done"},
		"commit, error": {fn: ends(`COMMIT`, nil), result: errLater, want: "1 effects, done"},
		"commit and fail, nil": {fn: ends(`COMMIT`, errFn), complete: "committed its transaction and then failed: no",
			want: "1 effects, dead: committed no"},
		"commit, run again": {fn: ends(`COMMIT`, handlers.RunAgain(time.Hour)), result: errLater,
			want: "1 effects, iteration 1 attempt 0 {}"},
		"error of fn, run again": {fn: ends(``, errFn), result: handlers.RunAgain(time.Hour), complete: "no",
			want: "0 effects, iteration 1 attempt 0 {}"},
		"discard, discard": {fn: ends(``, handlers.Discard(errFn)), result: handlers.Discard(errFn), complete: "no",
			want: "0 effects, kept as discarded"},
		"wait of nil": {fn: ends(``, handlers.RetryAfter(time.Hour, nil)), result: handlers.Dead(nil), complete: "retry after 1h",
			want: "0 effects, dead: handler handlers: Dead was given no error"},
		"ended context": {fn: func(*sql.Tx) error { panic("it is called") }, result: errLater,
			complete: "the context's own end", want: "0 effects, dead: attempts later"},
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		reg := handlers.New()
		for name, c := range cases {
			handlers.Leased(reg, outbox.NewTaskType[payload](name),
				func(ctx context.Context, task *outbox.Task[payload]) error {
					write := func(fn func(*sql.Tx) error) error {
						ctx, cancel := context.WithCancelCause(ctx)
						defer cancel(nil)
						if name == "ended context" {
							cancel(errors.New("the context's own end"))
						}
						return task.Complete(ctx, func(tx *sql.Tx) error {
							err := effect(ctx, tx, task.ID, task.Attempt)
							if fn == nil {
								return errors.Join(err, handlers.RunAgainWith(task, time.Hour, payload{N: 7}))
							}
							return errors.Join(err, fn(tx))
						})
					}
					if err := write(c.fn); (err == nil) != (c.complete == "") || err != nil &&
						!strings.Contains(err.Error(), c.complete) ||
						errors.Is(err, outbox.ErrLeaseLost) || errors.Is(err, outbox.ErrCommitUnknown) {
						t.Errorf("%s: Complete returned %v, want %q", name, err, c.complete)
					}
					if c.then != nil {
						if err := write(c.then); err != nil {
							t.Errorf("%s: the second Complete returned %v", name, err)
						}
					}
					return c.result
				}, handlers.MaxAttempts(1), handlers.Retention(time.Hour))
			db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, name)
		}
		db.Do(t, `CREATE TABLE ids AS SELECT task_id, task_type FROM outbox.task`)
		once(t, db, reg, relay.Config{})
		for name, c := range cases {
			got := db.Text(t, `SELECT count(e.*) || ' effects, ' || COALESCE('dead: ' || max(d.reason || ' ' || d.last_error),
				'iteration ' || max(t.iterations) || ' attempt ' || max(t.attempt) || ' ' || max(t.payload::text),
				max('kept as ' || h.outcome), 'done')
				FROM ids i LEFT JOIN effect e USING (task_id) LEFT JOIN outbox.dead_task d USING (task_id) LEFT
				JOIN outbox.task t USING (task_id)
				LEFT JOIN outbox.done_task h USING (task_id)
				WHERE i.task_type = $1`, name)
			if got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
	})
}
