package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Changes of one account are sent in their order; accounts do not wait for each other.
func ExampleOrderedBy() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Change struct {
		Account string
		Version int
	}
	send := outbox.NewTaskType[Change]("SEND_CHANGE")
	enqueueAll(db,
		send.New(Change{"ada", 1}, outbox.OrderedBy("ada")),
		send.New(Change{"ada", 2}, outbox.OrderedBy("ada"), outbox.Priority(-10)), // more urgent, and still second
		send.New(Change{"eve", 1}, outbox.OrderedBy("eve")),
	)
	reg, busy := handlers.New(), true
	handlers.Leased(reg, send, func(_ context.Context, task *outbox.Task[Change]) error {
		fmt.Println(task.OrderingKey, task.Payload.Version)
		if task.Payload == (Change{"ada", 1}) && busy {
			return handlers.RetryAfter(time.Hour, errors.New("the server is busy"))
		}
		return nil
	})
	runDue(ctx, db, reg)
	busy = false
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // the server is back, and nobody wants to wait
		found, err := outbox.RunNow(ctx, tx, 1)
		fmt.Println("it waits:", found)
		return err
	}))
	runDue(ctx, db, reg)
	// Output:
	// ada 1
	// eve 1
	// it waits: true
	// ada 1
	// ada 2
}

// Where a later task is better than none: what fails steps out of the order, and its key goes on.
func ExampleSkipFailed() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	show := outbox.NewTaskType[int]("SHOW_PRICE", outbox.OrderedBy("bread"), outbox.SkipFailed())
	enqueueAll(db, show.New(1), show.New(2), show.New(3))
	reg := handlers.New()
	handlers.Leased(reg, show, func(_ context.Context, task *outbox.Task[int]) error {
		if task.Payload == 2 {
			fmt.Println("2 fails")
			return errors.New("the display is off")
		}
		fmt.Println(task.Payload)
		return nil
	}, handlers.Backoff(func() retry.Backoff { return retry.NewConstant(time.Hour) }))
	runDue(ctx, db, reg)
	// Output:
	// 1
	// 2 fails
	// 3
}
