package history_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/history"
)

// Payments are kept for a year after they are done; of other types nothing is left.
func Example() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	pay, ping := outbox.NewTaskType[string]("PAY"), outbox.NewTaskType[string]("PING")
	reg := handlers.New()
	handlers.Leased(reg, pay, func(_ context.Context, task *outbox.Task[string]) error {
		if task.Payload == "eve" {
			return handlers.Discard(errors.New("the account is closed"))
		}
		return nil
	}, handlers.Keep(365*24*time.Hour))
	handlers.Leased(reg, ping, func(context.Context, *outbox.Task[string]) error { return nil })
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, []outbox.NewTask{pay.New("ada"), pay.New("eve"), ping.New("")})
		return err
	}))
	runDue(ctx, db, reg)

	page, err := history.List(ctx, db, "PAY", 0, 100) // the next page: before page[len(page)-1].TaskID
	must(err)
	for _, t := range page {
		fmt.Printf("task %d, attempt %d, for %d days: %q\n", t.TaskID, t.Attempt, int(t.KeepUntil.Sub(t.FinishedAt).Round(time.Hour).Hours())/24, t.Error)
	}
	one, err := history.Get(ctx, db, page[1].TaskID)
	must(err)
	fmt.Println(string(one.Payload))
	_, err = history.Get(ctx, db, 3)
	fmt.Println(err)
	// Output:
	// task 2, attempt 1, for 365 days: "discard: the account is closed"
	// task 1, attempt 1, for 365 days: ""
	// "ada"
	// history: not found: task 3
}
