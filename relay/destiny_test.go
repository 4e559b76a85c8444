package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// destiny is the payload of a task whose runs end as it says.
type destiny struct{ End string }

var destinies = []string{"ok", "error", "dead", "discard", "snooze", "retry after", "again", "panic"}

// destinyTypes have a Tx and a Leased handler.
var destinyTypes = []string{"TX", "LEASED"}

var errDestined = errors.New("destined")

func (d destiny) result() error {
	switch d.End {
	case "error":
		return errDestined
	case "dead":
		return handlers.Dead(errDestined)
	case "discard":
		return handlers.Discard(errDestined)
	case "snooze":
		return handlers.Snooze(time.Hour)
	case "retry after":
		return handlers.RetryAfter(time.Hour, errDestined)
	case "again":
		return handlers.RunAgain(time.Hour)
	case "panic":
		panic(errDestined)
	}
	return nil
}

func destined() *handlers.Registry {
	reg := handlers.New()
	retry := handlers.Backoff(constant(time.Hour))
	registerTx(reg, outbox.NewTaskType[destiny]("TX"),
		func(ctx context.Context, tx *sql.Tx, task *outbox.Task[destiny]) error {
			if err := effect(ctx, tx, task.ID, task.Attempt); err != nil {
				return err
			}
			return task.Payload.result()
		}, retry, handlers.MaxAttempts(2))
	handlers.Leased(reg, outbox.NewTaskType[destiny]("LEASED"),
		func(ctx context.Context, task *outbox.Task[destiny]) error {
			if task.Payload.End != "ok" {
				return task.Payload.result()
			}
			return task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, task.Attempt) })
		}, retry, handlers.MaxAttempts(2))
	return reg
}
