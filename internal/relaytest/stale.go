package relaytest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// StaleEnds are what the stale holder of a lease may do, by the task's payload.
var StaleEnds = []func(ctx context.Context, task *outbox.Task[Payload]) error{
	LeasedEffect,
	func(context.Context, *outbox.Task[Payload]) error { return nil },
	func(context.Context, *outbox.Task[Payload]) error { return errors.New("stale") },
	func(context.Context, *outbox.Task[Payload]) error { return handlers.Dead(errors.New("stale")) },
	func(context.Context, *outbox.Task[Payload]) error { return handlers.Snooze(time.Hour) },
}

// StaleEnd ends a task in the way that its payload says.
func StaleEnd(ctx context.Context, task *outbox.Task[Payload]) error {
	return StaleEnds[task.Payload.N%len(StaleEnds)](ctx, task)
}

// Taker runs a relay that takes leases over and has no handler for what it takes.
func Taker(t testing.TB, db *Database) {
	t.Helper()
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[Payload]("NONE"), TxEffect)
	Run(t, db.DB, reg, relay.Config{Workers: 1})
}

// NotSuspects lets the tasks that were taken over run side by side.
func (db *Database) NotSuspects(t testing.TB) {
	t.Helper()
	db.Do(t, `UPDATE outbox.task SET relay_id = NULL WHERE state = 'ready'`)
}

// Holder has a Leased handler that finishes half of the tasks, whichever way they would have ended,
// and keeps the others until release is closed.
func Holder(held *atomic.Int32, release chan struct{}) *handlers.Registry {
	return Leased(func(ctx context.Context, task *outbox.Task[Payload]) error {
		if task.Payload.N/len(StaleEnds)%2 == 1 {
			held.Add(1)
			<-release
		}
		return LeasedEffect(ctx, task)
	})
}

// Tasks is all there is in the table of tasks.
func (db *Database) Tasks(t testing.TB) string {
	t.Helper()
	return db.Text(t, `SELECT json_agg(t ORDER BY task_id) FROM outbox.task t`)
}
