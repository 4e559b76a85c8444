package relay_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

var fastPoll = relay.Config{PollInterval: 100 * time.Millisecond}

// F42 and the two-table queue's "extending in the middle of work". An extension ends as well.
func TestExtendKeepsAHandlerBeyondItsTimeout(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, c := range map[string]struct {
		opt  handlers.Option
		err  error
		lost bool
	}{
		"timeout":      {handlers.Timeout(5 * time.Second), context.DeadlineExceeded, false},
		"no heartbeat": {handlers.NoHeartbeat(5 * time.Second), context.Canceled, true},
	} {
		tests[name] = func(t *testing.T) {
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
		}
	}
	relaytest.Together(t, tests)
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

func TestAnErrorOfALeaseNamesItsPackageOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	said := make(chan error, 2)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		<-ctx.Done()
		said <- task.Extend(ctx, time.Second)
		said <- task.Complete(ctx, func(*sqlTx) error { return nil })
		return nil
	}, handlers.Timeout(50*time.Millisecond), handlers.MaxAttempts(1)), fastPoll)
	db.Enqueue(t, "LEASED", 1)
	for range cap(said) {
		if err := <-said; err == nil || strings.Count(err.Error(), "relay: ") > 1 {
			t.Errorf("got %v", err)
		}
	}
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
		return task.Complete(ctx, func(*sqlTx) error {
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
		other.Complete(t.Context(), func(*sqlTx) error { return nil })} {
		if !errors.Is(err, outbox.ErrNotLeased) {
			t.Errorf("of a task that is not leased: %v, want ErrNotLeased", err)
		}
	}
}
