package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// The server of the mail is back, and nobody wants to wait for the next attempt.
func ExampleRunNow() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	var mail = outbox.NewTaskType[string]("SEND_MAIL")
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := mail.Enqueue(ctx, tx, "ada@example.com")
		return err
	}))
	up := false
	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		if !up {
			return handlers.RetryAfter(time.Hour, errors.New("connection refused"))
		}
		fmt.Println("mail to", task.Payload, "in attempt", task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)

	up = true
	for range 2 {
		must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			found, err := outbox.RunNow(ctx, tx, 1)
			fmt.Println("was scheduled:", found)
			return err
		}))
		runDue(ctx, db, reg)
	}
	// Output:
	// was scheduled: true
	// mail to ada@example.com in attempt 2
	// was scheduled: false
}
