package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// runCounted runs a relay, with wake-ups, and counts its statements: BEGIN, COMMIT and ROLLBACK are
// some.
func runCounted(t *testing.T, db *database) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	counted := &faulty{each: func(_ context.Context, call string) {
		if call != "ping" {
			n.Add(1)
		}
	}}
	run(t, db.through(t, counted.wrap), all(), relay.Config{ListenDSN: db.URL})
	return &n
}

// Not beside other tests, whose enqueues wake all relays of the process; a handler that one of them
// has left behind may, so there is a second try and a third. The time is long enough for takeovers
// to begin.
func TestIdleRelaysSendTwoStatementsASecond(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	db := newDatabase(t)
	relays := []*atomic.Int64{runCounted(t, db), runCounted(t, db), runCounted(t, db)}
	db.Enqueue(t, "TX", 3)
	db.Emptied(t, 10*time.Second)
	db.becomes(t, 30*time.Second, 0, "the log is folded", `SELECT count(*) FROM outbox.counter_log`)
	const span = 15 * time.Second
	for try := 1; ; try++ {
		before := make([]int64, len(relays))
		for i, r := range relays {
			before[i] = r.Load()
		}
		began, most := time.Now(), 0.0
		<-time.After(span)
		for i, r := range relays {
			a := float64(r.Load()-before[i]) / time.Since(began).Seconds()
			most = max(most, a)
			t.Logf("relay %d: %.2f statements a second", i, a)
		}
		if most <= 2 {
			return
		}
		if try == 3 {
			t.Fatalf("a relay sends %.2f statements a second, want at most 2", most)
		}
	}
}
