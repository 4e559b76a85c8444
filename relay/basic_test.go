package relay_test

import (
	"context"
	"database/sql"
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
	for _, order := range []relay.Order{relay.InOrder, relay.Random} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			db := newDatabase(t)
			for _, name := range []string{"TX", "BATCH", "LEASED"} {
				db.Enqueue(t, name, 100)
			}
			once(t, db, all(), relay.Config{Order: order})
			db.wantRows(t, 0, `outbox.task`)
			db.wantRows(t, 300, `effect WHERE attempt = 1`)
			db.OnceEach(t, 300)
		})
	}
}

// I5.
func TestFailuresAreRetriedAndEndInTheDeadLetters(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	boom := errors.New("boom")
	var calls [3]atomic.Int32
	fast := handlers.Backoff(constant(time.Millisecond))
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		calls[0].Add(1)
		return errors.Join(txEffect(ctx, tx, task), boom)
	}, fast, handlers.MaxAttempts(3))
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		calls[1].Add(int32(len(tasks)))
		return errors.Join(batchEffect(ctx, tx, tasks), boom)
	}, fast, handlers.MaxAttempts(3))
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		calls[2].Add(1)
		return boom
	}, fast, handlers.MaxAttempts(3))
	for _, name := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, name, 5)
	}
	run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	eventually(t, 30*time.Second, "15 dead letters", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == 15 })
	db.wantRows(t, 0, `effect`)
	db.wantRows(t, 15, `outbox.dead_task WHERE attempt = 3 AND max_attempts = 3 AND last_error LIKE '%boom%' AND reason = 'attempts'`)
	if calls[0].Load() != 15 || calls[2].Load() != 15 {
		t.Errorf("calls %d and %d, want 15 each", calls[0].Load(), calls[2].Load())
	}
}
