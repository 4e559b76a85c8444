package relay_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// The heartbeat cannot get through for as long as leases last.
func testLostHeartbeat(t *testing.T) {
	db := newDatabase(t)
	begun, causes := make(chan struct{}, 1), make(chan error, 1)
	var first atomic.Bool
	run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		if !first.CompareAndSwap(false, true) {
			return leasedEffect(ctx, task)
		}
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), relay.Config{Workers: 1, PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	<-begun
	release := hold(t, db, `LOCK TABLE outbox.relay IN EXCLUSIVE MODE`)
	locked := time.Now()
	if cause := <-causes; !errors.Is(cause, outbox.ErrLeaseLost) {
		t.Errorf("the handler's context ended by %v, want ErrLeaseLost", cause)
	}
	if after := time.Since(locked); after < 6*time.Second || relaytest.Timing && after > 13*time.Second {
		t.Errorf("it ended %v after the last heartbeat at most 3 s before; leases last 10 s", after)
	}
	eventually(t, 10*time.Second, "the task is handed back without an attempt", func() bool {
		return db.taskState(t) == "ready 0"
	})
	release()
	db.Emptied(t, 15*time.Second)
	db.OnceEach(t, 1)
	db.want(t, 1, "done in attempt", `SELECT attempt FROM effect`)
}

// What mostly waits for a heartbeat, a timeout or a poll, and measures how long: all at once, beside nothing else.
func TestGuaranteesInTime(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T){
		"without heartbeats a lease that ran out is taken over from a living process": testWithoutHeartbeatsALeaseIsTakenOver,
		"a late heartbeat revives a lease that nobody took":                           testLateHeartbeat,
	}
	if relaytest.CI {
		tests["handlers end when heartbeats do not get through"] = testLostHeartbeat
		tests["RunOnce takes over the tasks of dead relays"] = testRunOnceTakesOver
		tests["no interleaving of a holder and a rescuer breaks the rule of the token"] = testEveryInterleaving
	}
	if relaytest.Long {
		tests["without notifications a poll finds the task"] = testPollFindsTheTask
		tests["timeouts of the role do not stop a relay"] = testTimeoutsOfTheRole
	}
	relaytest.Together(t, tests)
}
