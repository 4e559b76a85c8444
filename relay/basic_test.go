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

type payload struct{ N int }

var (
	typeTx     = outbox.NewTaskType[payload]("TX")
	typeBatch  = outbox.NewTaskType[payload]("BATCH")
	typeLeased = outbox.NewTaskType[payload]("LEASED")
)

func effect(ctx context.Context, tx outbox.Tx, id int64, attempt int) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO effect (task_id, attempt) VALUES ($1, $2)`, id, attempt)
	return err
}

func txEffect(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
	return effect(ctx, tx, task.ID, task.Attempt)
}

func batchEffect(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
	for _, task := range tasks {
		if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
			return err
		}
	}
	return nil
}

func leasedEffect(ctx context.Context, task *outbox.Task[payload]) error {
	return task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, task.Attempt) })
}

// all registers a handler of each kind that records one effect.
func all() *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, typeTx, txEffect)
	handlers.Batch(reg, typeBatch, 50, batchEffect)
	handlers.Leased(reg, typeLeased, leasedEffect)
	return reg
}

func TestEachTaskOfEachKindRunsOnce(t *testing.T) {
	for _, order := range []relay.Order{relay.InOrder, relay.Random} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			db := newDatabase(t)
			for _, name := range []string{"TX", "BATCH", "LEASED"} {
				db.enqueue(t, name, 500)
			}
			once(t, db, all(), relay.Config{Order: order})
			if n := db.int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
				t.Errorf("%d tasks are left\n%s", n, db.dump(t))
			}
			if n := db.int(t, `SELECT count(*) FROM effect WHERE attempt = 1`); n != 1500 {
				t.Errorf("%d effects, want 1500", n)
			}
			if n := db.int(t, `SELECT count(DISTINCT task_id) FROM effect`); n != 1500 {
				t.Errorf("effects of %d tasks, want 1500", n)
			}
		})
	}
}

func TestFailuresAreRetriedAndEndInTheDeadLetters(t *testing.T) {
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
		db.enqueue(t, name, 5)
	}
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 30*time.Second, "15 dead letters", func() bool { return db.int(t, `SELECT count(*) FROM outbox.dead_task`) == 15 })
	if n := db.int(t, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d effects of failed handlers", n)
	}
	if n := db.int(t, `SELECT count(*) FROM outbox.dead_task WHERE attempt = 3 AND max_attempts = 3 AND last_error LIKE '%boom%' AND reason = 'attempts'`); n != 15 {
		t.Errorf("%d dead letters are as they should be\n%s", n, db.dump(t))
	}
	if calls[0].Load() != 15 || calls[2].Load() != 15 {
		t.Errorf("calls %d and %d, want 15 each", calls[0].Load(), calls[2].Load())
	}
}
