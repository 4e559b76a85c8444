package crashes_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
)

var typePlain = outbox.NewTaskType[relaytest.Payload]("PLAIN")

// effects registers handlers of each kind that pass through the points of pointsSQL and write one effect, with more
// attempts than a test will need. That of the type PLAIN writes it on the side, as what leaves the database.
func effects(side *sql.DB) *handlers.Registry {
	reg := handlers.New()
	many := handlers.MaxAttempts(1000)
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		return pointed(ctx, tx, func() error { return relaytest.TxEffect(ctx, tx, task) })
	}, many)
	handlers.Batch(reg, relaytest.TypeBatch, 20, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[relaytest.Payload]) error {
		return pointed(ctx, tx, func() error { return relaytest.BatchEffect(ctx, tx, tasks) })
	}, many)
	handlers.Leased(reg, relaytest.TypeLeased, func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error {
			return pointed(ctx, tx, func() error { return relaytest.Effect(ctx, tx, task.ID, task.Attempt) })
		})
	}, many)
	handlers.Leased(reg, typePlain, func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		_, err := side.ExecContext(ctx, `INSERT INTO effect (task_id, attempt) VALUES ($1, -1)`, task.ID)
		return err
	}, many)
	return reg
}

func pointed(ctx context.Context, tx outbox.Tx, write func() error) error {
	if _, err := tx.ExecContext(ctx, `SELECT stop_at('handler begun')`); err != nil {
		return err
	}
	if err := write(); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `SELECT stop_at('effect written')`)
	return err
}

// gated registers a Leased handler that tells of its start and waits for the gate; and a Tx handler with
// a short timeout that does the same after it wrote its effect.
func gated(side *sql.DB) *handlers.Registry {
	wait := func(task *outbox.Task[relaytest.Payload]) {
		_, _ = side.Exec(`INSERT INTO start (task_id, attempt) VALUES ($1, $2)`, task.ID, task.Attempt)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			var open bool
			if err := side.QueryRow(`SELECT open FROM gate`).Scan(&open); err == nil && open {
				return
			}
		}
	}
	reg := relaytest.Leased(func(ctx context.Context, task *outbox.Task[relaytest.Payload]) error {
		wait(task)
		return relaytest.LeasedEffect(ctx, task)
	})
	relaytest.Tx(reg, relaytest.TypeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		if err := relaytest.TxEffect(ctx, tx, task); err != nil {
			return err
		}
		wait(task)
		return nil
	}, handlers.Timeout(100*time.Millisecond))
	return reg
}

func newGatedDatabase(t *testing.T) *relaytest.Database {
	db := relaytest.NewDatabase(t)
	db.Do(t, `CREATE TABLE start (task_id bigint, attempt int, at timestamptz DEFAULT clock_timestamp());
		CREATE TABLE gate (open boolean); INSERT INTO gate VALUES (false)`)
	return db
}
