package relay_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// Not beside other tests, whose enqueues wake all relays of the process; a handler that one of them
// has left behind may, so there is a second try and a third. The time is long enough for takeovers
// to begin.
func TestIdleRelaysSendTwoStatementsASecond(t *testing.T) {
	t.Parallel()
	needs.Timing(t)
	db := newDatabase(t)
	var sent [3]atomic.Int64 // by each relay: BEGIN, COMMIT and ROLLBACK are some
	for i := range sent {
		counted := &faulty{each: func(_ context.Context, call string) {
			if call != "ping" {
				sent[i].Add(1)
			}
		}}
		run(t, db.through(t, counted.wrap), all(), relay.Config{ListenDSN: db.URL})
	}
	db.Enqueue(t, "TX", 3)
	db.Emptied(t, 10*time.Second)
	db.becomes(t, 30*time.Second, 0, "the log is folded", `SELECT count(*) FROM outbox.counter_log`)
	most := int64(math.MaxInt64)
	for try := 0; try < 3 && most > 30; try++ {
		most = 0
		for i := range sent {
			sent[i].Store(0)
		}
		<-time.After(15 * time.Second)
		for i := range sent {
			most = max(most, sent[i].Load())
		}
	}
	if most > 30 {
		t.Errorf("a relay sends %d statements in 15 s, want at most 30", most)
	}
}
