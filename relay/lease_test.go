package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/store"
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
	ended := make(chan error, 1)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}, handlers.Timeout(100*time.Millisecond), handlers.Backoff(constant(time.Hour))), fastPoll)
	db.Enqueue(t, "LEASED", 1)
	eventually(t, 20*time.Second, "the failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
	if cause := <-ended; !errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("the context ended by %v", cause)
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
