package relay_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

func TestEachTaskOfEachKindRunsOnce(t *testing.T) {
	t.Parallel()
	for _, order := range []relay.Order{relay.OrderEnqueued, relay.OrderRandom} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			db := newDatabase(t)
			db.enqueueEach(t, 100)
			once(t, db, all(), relay.Config{Order: order})
			db.wantRows(t, 0, `outbox.task`)
			db.wantRows(t, 300, `effect WHERE attempt = 1`)
			db.OnceEach(t, 300)
		})
	}
}

// I5.
func TestFailuresAreRetriedAndEndInTheDeadLetters(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		var calls atomic.Int32
		kinds[kind](reg, "FAILS", func(*outbox.Task[payload]) error {
			calls.Add(1)
			return errors.New("boom")
		}, handlers.MaxAttempts(3), retrySoon())
		db.Enqueue(t, "FAILS", 5)
		run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		db.wantRows(t, 5, `outbox.dead_task WHERE attempt = 3 AND max_attempts = 3 AND last_error LIKE '%boom%' AND reason = 'attempts'`)
		db.wantRows(t, 0, `effect`)
		if n := calls.Load(); kind != "batch" && n != 15 { // a batch that fails is called for each task again
			t.Errorf("%d calls, want 15", n)
		}
	})
}
