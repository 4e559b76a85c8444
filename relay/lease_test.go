package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

func (db *database) taskState(t testing.TB) string {
	t.Helper()
	return db.Text(t, `SELECT string_agg(concat_ws(' ', state, attempt, CASE WHEN lease_token IS NOT NULL THEN 'token' END,
		CASE WHEN relay_id IS NOT NULL THEN 'relay' END, CASE WHEN leased_until IS NOT NULL THEN 'until' END), ', ' ORDER BY task_id) FROM outbox.task`)
}

func TestALeasedHandlerEndsWithItsTimeoutWhichIsAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	type seen struct{ err, cause error }
	ended := make(chan seen, 1)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		<-ctx.Done()
		ended <- seen{ctx.Err(), context.Cause(ctx)}
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}, handlers.Timeout(100*time.Millisecond), handlers.Backoff(constant(time.Hour))), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	select {
	case got := <-ended:
		if !errors.Is(got.err, context.DeadlineExceeded) || !errors.Is(got.cause, context.DeadlineExceeded) || errors.Is(got.cause, outbox.ErrLeaseLost) {
			t.Errorf("the context ended with %v, cause %v", got.err, got.cause)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler's context did not end")
	}
	eventually(t, 10*time.Second, "the failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
	if got := db.Text(t, `SELECT last_error FROM outbox.task`); got != "interrupted: context deadline exceeded" {
		t.Errorf("last_error %q", got)
	}
}

func TestALeaseEndsByItselfOnlyAfterTheTimeoutAndNeverWithoutOne(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]string{time.Minute: "leased 1 token relay until", -1: "leased 1 token relay"} {
		t.Run(timeout.String(), func(t *testing.T) {
			db := newDatabase(t)
			deadline, done := make(chan bool, 1), make(chan struct{})
			run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				_, has := ctx.Deadline()
				deadline <- has
				<-done
				return nil
			}, handlers.Timeout(timeout)), relay.Config{PollInterval: 100 * time.Millisecond})
			db.Enqueue(t, "LEASED", 1)
			if has := <-deadline; has != (timeout > 0) {
				t.Errorf("the handler's context has a deadline: %v", has)
			}
			if got := db.taskState(t); got != want {
				t.Errorf("the task is %s, want %s", got, want)
			}
			// The handler has ended, or was abandoned, when the lease does.
			if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE leased_until < attempted_at + interval '65 seconds'`); n != 0 {
				t.Error("the lease ends before the handler's failure can be recorded")
			}
			close(done)
			db.Emptied(t, 10*time.Second)
		})
	}
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
	// The third is a suspect: its relay died. It stays one, as its run has not shown that it is harmless.
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, attempt, relay_id)
		VALUES ('LEASED', '{"N": 1}', 0, NULL), ('LEASED', '{"N": 2}', 0, NULL), ('LEASED', '{"N": 3}', 4, '00000000-0000-4000-8000-000000000000')`)
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
	if got := db.Text(t, `SELECT string_agg(payload ->> 'N', ' ' ORDER BY task_id) FROM outbox.task`); got != "1 3" {
		t.Errorf("left are %s, want 1 3: the second was done", got)
	}
	once(t, db, leased(leasedEffect), relay.Config{})
	if got := db.Text(t, `SELECT string_agg(attempt::text, ' ' ORDER BY task_id) FROM effect`); got != "1 5" {
		t.Errorf("done in attempts %s, want 1 5", got)
	}
}

func TestLeasedTasksThatEndMeanwhileAreCompletedInOneTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE completion (tx bigint, tasks int);
		CREATE FUNCTION completed() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM gone) > 0 THEN
		    PERFORM pg_advisory_xact_lock_shared(1);
		    INSERT INTO completion SELECT txid_current(), count(*) FROM gone;
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE TRIGGER completed AFTER DELETE ON outbox.task REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION completed()`)
	gate, err := direct(t, db.URL).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
		t.Fatal(err)
	}
	const tasks = 20
	first, others := make(chan struct{}), make(chan struct{})
	begun := make(chan struct{}, tasks)
	var returned atomic.Int32
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		begun <- struct{}{}
		defer returned.Add(1)
		if task.Payload.N == 1 {
			<-first
		} else {
			<-others
		}
		return nil
	}), relay.Config{Workers: tasks, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", tasks)
	for range tasks {
		<-begun
	}
	waiting := func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'`) == 1
	}
	close(first)
	eventually(t, 10*time.Second, "the first completion is under way", waiting)
	close(others)
	eventually(t, 10*time.Second, "the other handlers return", func() bool { return returned.Load() == tasks })
	if _, err := gate.ExecContext(t.Context(), `SELECT pg_advisory_unlock(1)`); err != nil {
		t.Fatal(err)
	}
	db.Emptied(t, 10*time.Second)
	got := db.Text(t, `SELECT string_agg(tasks::text, ' ') FROM (SELECT sum(tasks) AS tasks FROM completion GROUP BY tx ORDER BY min(tx)) c`)
	// A few may still have been on their way when the second completion began.
	if n := len(strings.Fields(got)); !strings.HasPrefix(got, "1 ") || n > 5 {
		t.Errorf("the tasks were completed in transactions of %s; want 1 and then nearly all together", got)
	}
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
	eventually(t, 10*time.Second, "the relay renews its leases", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '5 seconds'`) == 1
	})
	close(done)
	db.Emptied(t, 10*time.Second)
	db.OnceEach(t, 1)
	if got := db.Int(t, `SELECT attempt FROM effect`); got != 1 {
		t.Errorf("done in attempt %d, want 1", got)
	}
}
