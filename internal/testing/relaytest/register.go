package relaytest

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Handle is a handler of any kind. The transaction is the one that removes the tasks; a Leased
// handler has none.
type Handle[P any] func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[P]) error

// Register registers h as a kind of handler: "tx", "batch" of the size, "leased", or "complete",
// which is the function that a Leased handler gives to Complete.
func Register[P any](reg *handlers.Registry, kind, taskType string, size int, h Handle[P], opts ...handlers.Option) {
	of := outbox.NewTaskType[P](taskType)
	switch kind {
	case "tx":
		Tx(reg, of, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[P]) error {
			return h(ctx, tx, []*outbox.Task[P]{task})
		}, opts...)
	case "batch":
		handlers.Batch(reg, of, size, h, opts...)
	case "leased":
		handlers.Leased(reg, of, func(ctx context.Context, task *outbox.Task[P]) error {
			return h(ctx, nil, []*outbox.Task[P]{task})
		}, opts...)
	case "complete":
		handlers.Leased(reg, of, func(ctx context.Context, task *outbox.Task[P]) error {
			return task.Complete(ctx, func(tx *sql.Tx) error { return h(ctx, tx, []*outbox.Task[P]{task}) })
		}, opts...)
	default:
		panic("no kind of handler is named " + kind)
	}
}
