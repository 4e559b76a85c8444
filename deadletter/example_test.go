package deadletter_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/handlers"
)

// After an outage of the mail server: look at what died, run again what the outage killed, and delete the rest.
func Example() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	down := true
	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		switch {
		case task.Payload == "nobody":
			return handlers.Dead(errors.New("no such recipient"))
		case down:
			return errors.New("mail.example.com: connection refused")
		}
		fmt.Printf("task %d: mail to %s in attempt %d\n", task.ID, task.Payload, task.Attempt)
		return nil
	}, handlers.MaxAttempts(1))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, []outbox.NewTask{mail.New("ada"), mail.New("nobody"), mail.New("eve"), mail.New("bob")})
		return err
	}))
	runDue(ctx, db, reg)
	down = false

	refused := deadletter.Filter{Type: "SEND_MAIL", Error: deadletter.Containing("connection refused")}
	n, err := deadletter.Count(ctx, db, refused)
	must(err)
	fmt.Println(n, "were refused")
	page, err := deadletter.List(ctx, db, deadletter.Filter{Reason: deadletter.Handler}, deadletter.Cursor{}, 50) // then from page[len(page)-1].Cursor()
	must(err)
	for _, l := range page {
		l, err := deadletter.Get(ctx, db, l.TaskID) // with its payload
		must(err)
		fmt.Printf("task %d, %s: %s: %s\n", l.TaskID, l.Payload, l.Reason, l.Error)
	}

	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // one, together with whatever else repairs it
		moved, err := deadletter.Redrive(ctx, tx, []int64{1})
		fmt.Println("redriven:", moved)
		return err
	}))
	redriven, err := deadletter.RedriveMany(ctx, db, refused, 100) // the others, at most 100 a second
	must(err)
	fmt.Println("redriven:", redriven)
	runDue(ctx, db, reg)

	purged, err := deadletter.Purge(ctx, db, deadletter.Filter{DiedBefore: time.Now().Add(time.Hour)}, 1000)
	must(err)
	fmt.Println("purged:", purged)
	// Output:
	// 3 were refused
	// task 2, "nobody": handler: dead: no such recipient
	// redriven: [1]
	// redriven: 2
	// task 1: mail to ada in attempt 1
	// task 3: mail to eve in attempt 1
	// task 4: mail to bob in attempt 1
	// purged: 1
}
