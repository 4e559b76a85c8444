package outboxtest_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
)

// A Drain's clock shows an app's test that a rate limit of hours kills nothing, and that one without an
// end does after three days.
func TestADrainsClockGoesThroughRateLimits(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "TX", func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
			return handlers.RetryAfter(10*time.Minute, errBoom)
		}, handlers.MaxAttempts(3), handlers.NoJitter())
		handlers.Leased(reg, outbox.NewTaskType[payload]("LEASED"), func(context.Context, *outbox.Task[payload]) error {
			return handlers.RetryAfter(2*time.Hour, errBoom)
		}, handlers.MaxAttempts(3))
		enqueue(t, in, "TX", 1)
		result := outboxtest.Drain(t, in, reg, outboxtest.Through(6*time.Hour-time.Minute))
		if result.Count(outboxtest.Throttled) != 36 || len(result.Runs) != 36 || result.Err() != nil {
			t.Errorf("six hours: %v", result)
		}
		exec(t, in, `DELETE FROM outbox.task`)
		enqueue(t, in, "LEASED", 1)
		result = outboxtest.Drain(t, in, reg, outboxtest.Through(100*time.Hour))
		throttled := result.Count(outboxtest.Throttled)
		if throttled < 30 || throttled > 36 || result.Count(outboxtest.Failed) != 2 || result.Count(outboxtest.Dead) != 1 {
			t.Errorf("four days: %v", result)
		}
	})
}
