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
			if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
				t.Errorf("%d tasks are left\n%s", n, db.Dump(t))
			}
			if n := db.Int(t, `SELECT count(*) FROM effect WHERE attempt = 1`); n != 300 {
				t.Errorf("%d effects, want 300", n)
			}
			if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect`); n != 300 {
				t.Errorf("effects of %d tasks, want 300", n)
			}
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
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects of failed handlers", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 3 AND max_attempts = 3 AND last_error LIKE '%boom%' AND reason = 'attempts'`); n != 15 {
		t.Errorf("%d dead letters are as they should be\n%s", n, db.Dump(t))
	}
	if calls[0].Load() != 15 || calls[2].Load() != 15 {
		t.Errorf("calls %d and %d, want 15 each", calls[0].Load(), calls[2].Load())
	}
}
