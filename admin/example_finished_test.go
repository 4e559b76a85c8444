package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
)

// Payments are kept for a year after they are done; of other types nothing is left.
func ExampleClient_Tasks_finished() {
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

	client, err := admin.New(db, admin.Options{})
	must(err)
	tasks, _, err := client.Tasks(ctx, "PAY", admin.Finished, admin.Page{})
	must(err)
	for _, t := range tasks {
		fmt.Printf("task %d, attempt %d, for %d days: %q\n", t.TaskID, t.Attempt, int(t.KeepUntil.Sub(t.EndedAt).Round(time.Hour).Hours())/24, t.LastError)
	}
	secrets, err := client.Secrets(ctx, tasks[1].TaskID)
	must(err)
	fmt.Println(string(secrets.Payload))
	_, err = client.Task(ctx, 3)
	fmt.Println(err)
	// Output:
	// task 2, attempt 1, for 365 days: "discard: the account is closed"
	// task 1, attempt 1, for 365 days: ""
	// "ada"
	// admin: not found: task 3
}
