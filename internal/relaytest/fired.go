package relaytest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// TypeFired is the type of tasks that schedules enqueue.
var TypeFired = outbox.NewTaskType[Payload]("FIRED")

// FiredAt has a handler that keeps the id and run_at of each task of TypeFired, in the table of
// CreateFired.
func FiredAt() *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, TypeFired, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Payload]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO fired (task_id, run_at) VALUES ($1, $2)`, task.ID, task.RunAt)
		return err
	}, handlers.MaxAttempts(1000))
	return reg
}

// CreateFired makes the table that FiredAt needs.
func (db *Database) CreateFired(t testing.TB) {
	t.Helper()
	db.Do(t, `CREATE TABLE fired (task_id bigint NOT NULL, run_at timestamptz NOT NULL,
		at timestamptz NOT NULL DEFAULT clock_timestamp())`)
}
