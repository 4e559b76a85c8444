package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

var fastPoll = relay.Config{PollInterval: 100 * time.Millisecond}

// F42 and the two-table queue's "extending in the middle of work".
func TestExtendKeepsAHandlerBeyondItsTimeout(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	tests := map[string]func(*testing.T){}
	for name, opt := range map[string]handlers.Option{
		"timeout": handlers.Timeout(5 * time.Second), "no heartbeat": handlers.NoHeartbeat(5 * time.Second),
	} {
		tests[name] = func(t *testing.T) {
			onEachDriver(t, func(t *testing.T, db *database) {
				run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
					derived, cancel := context.WithCancel(ctx)
					defer cancel()
					asked := db.Text(t, `SELECT clock_timestamp()`)
					first, _ := ctx.Deadline()
					if err := task.Extend(ctx, 30*time.Second); err != nil {
						return err
					}
					if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE leased_until >= $1::timestamptz + interval '30 s'`, asked); n != 1 {
						t.Errorf("the row's lease ends earlier than 30 s after %s", asked)
					}
					if second, _ := derived.Deadline(); second.Sub(first) < 24500*time.Millisecond {
						t.Errorf("Deadline moved from %v to %v, want 25 s later", first, second)
					}
					if err := task.Extend(ctx, time.Millisecond); err != nil { // does not shorten
						return err
					}
					select {
					case <-derived.Done():
						return errors.New("the context ended in spite of Extend")
					case <-time.After(6 * time.Second):
					}
					return leasedEffect(derived, task)
				}, opt), fastPoll)
				db.Enqueue(t, "LEASED", 1)
				db.Emptied(t, 20*time.Second)
				db.OnceEach(t, 1)
				if n := db.Int(t, `SELECT count(*) FROM effect WHERE attempt = 1`); n != 1 {
					t.Error("it was not done in its first attempt")
				}
			})
		}
	}
	relaytest.Together(t, tests)
}

func TestAnExtensionEndsAsWell(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		opt  handlers.Option
		err  error
		lost bool
	}{
		"timeout":      {handlers.Timeout(5 * time.Second), context.DeadlineExceeded, false},
		"no heartbeat": {handlers.NoHeartbeat(5 * time.Second), context.Canceled, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			type seen struct {
				err, derived, cause, again error
				after                      time.Duration
			}
			ended := make(chan seen, 1)
			run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				derived, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				begun := time.Now()
				if err := task.Extend(ctx, 6*time.Second); err != nil {
					t.Error(err)
				}
				<-derived.Done()
				ended <- seen{ctx.Err(), derived.Err(), context.Cause(derived), task.Extend(context.Background(), time.Second), time.Since(begun)}
				return ctx.Err()
			}, c.opt, handlers.Backoff(constant(time.Hour))), fastPoll)
			db.Enqueue(t, "LEASED", 1)
			got := <-ended
			if !errors.Is(got.err, c.err) || !errors.Is(got.derived, c.err) || errors.Is(got.cause, outbox.ErrLeaseLost) != c.lost || errors.Is(got.again, outbox.ErrLeaseLost) != c.lost || got.again == nil {
				t.Errorf("ended with %v, a derived context with %v, cause %v; then Extend returned %v", got.err, got.derived, got.cause, got.again)
			}
			if got.after < 6*time.Second || relaytest.Timing && got.after > 10*time.Second {
				t.Errorf("it ended after %v, want 6 s", got.after)
			}
			// The run was an attempt, also where the lease ran out: else it would go on for ever.
			eventually(t, 10*time.Second, "the failure is recorded", func() bool { return db.taskState(t) == "scheduled 1" })
		})
	}
}

// The lease of a task without heartbeats ends although its process lives; the handler ignores its context.
func TestWithoutHeartbeatsALeaseThatRanOutIsTakenOverFromALivingProcess(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	stale, begun := make(chan error, 2), make(chan struct{})
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		if task.Attempt > 1 {
			return leasedEffect(ctx, task)
		}
		close(begun)
		<-ctx.Done()
		// Nobody else is there to take it over, as this relay's beats are not settled: an operator's statement stands in for it.
		eventually(t, 10*time.Second, "the lease has run out", func() bool {
			return db.Int(t, `WITH u AS (UPDATE outbox.task SET state = 'ready', relay_id = NULL, lease_token = NULL, leased_until = NULL
				WHERE leased_until < clock_timestamp() RETURNING 1) SELECT count(*) FROM u`) == 1
		})
		stale <- task.Extend(context.Background(), time.Second)
		err := task.Complete(context.Background(), func(tx *sqlTx) error { return effect(context.Background(), tx, task.ID, 1) })
		stale <- err
		return err
	}, handlers.NoHeartbeat(500*time.Millisecond))
	run(t, db, reg, fastPoll)
	db.Enqueue(t, "LEASED", 1)
	<-begun
	if got := db.taskState(t); got != "leased 1 token relay until" {
		t.Errorf("the task is %s", got)
	}
	for range 2 {
		if err := <-stale; !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("the stale holder got %v, want ErrLeaseLost", err)
		}
	}
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
}

// The same by the relay itself, which takes 10 s to settle.
func testWithoutHeartbeatsALeaseIsTakenOver(t *testing.T) {
	db := newDatabase(t)
	release := make(chan struct{})
	var once = make(chan struct{}, 1)
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		select {
		case once <- struct{}{}:
			<-release // it ignores the end of its context, but for as long as that takes to be abandoned: 5 s
			return errors.New("stale")
		default:
		}
		return leasedEffect(ctx, task)
	}, handlers.NoHeartbeat(11*time.Second)), relay.Config{Workers: 2, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	db.Emptied(t, 30*time.Second)
	close(release)
	db.OnceEach(t, 1)
	if n := db.Int(t, `SELECT count(*) FROM effect WHERE attempt = 2`); n != 1 {
		t.Error("it was not done in the second attempt")
	}
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

// A driver whose statement is cancelled may say no more than "bad connection".
func TestExtendSaysWhyItEndedInTheMiddle(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		why := errors.New("the caller's own reason")
		said := make(chan [2]error, 1)
		run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			tx, err := db.DB.BeginTx(context.Background(), nil)
			if err != nil {
				return handlers.Dead(err)
			}
			defer tx.Rollback()
			if _, err := tx.Exec(`SELECT FROM outbox.task FOR UPDATE`); err != nil { // so that Extend waits
				return handlers.Dead(err)
			}
			short, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, why)
			defer cancel()
			said <- [2]error{task.Extend(short, time.Minute), task.Extend(ctx, time.Minute)}
			return nil
		}, handlers.Timeout(2*time.Second)), fastPoll)
		db.Enqueue(t, "LEASED", 1)
		var got [2]error
		select {
		case got = <-said:
		case <-time.After(20 * time.Second):
			t.Fatal("the handler was not called, or Extend hangs")
		}
		if !errors.Is(got[0], why) {
			t.Errorf("Extend under a context that ended: %v, want %v", got[0], why)
		}
		if !errors.Is(got[1], context.DeadlineExceeded) {
			t.Errorf("Extend at the handler's timeout: %v, want %v", got[1], context.DeadlineExceeded)
		}
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
	if err := (&outbox.Task[payload]{}).Extend(t.Context(), time.Second); !errors.Is(err, outbox.ErrNotLeased) {
		t.Errorf("a task that is not leased: %v, want ErrNotLeased", err)
	}
}
