package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
)

// After an outage of the mail server: look at what died, run again what the outage killed, and delete the rest.
func ExampleClient_Redrive() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
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
	enqueueAll(db, mail.New("ada"), mail.New("nobody"), mail.New("eve"), mail.New("bob"))
	runDue(ctx, db, reg)
	down = false

	groups, err := client.DeadGroups(ctx, admin.Filter{})
	must(err)
	for _, g := range groups {
		fmt.Printf("%d × %s\n", g.Count, g.Error)
	}
	refused := admin.Filter{Type: "SEND_MAIL", Error: "connection refused"}
	n, _, err := client.CountDeadLetters(ctx, refused, admin.Page{})
	must(err)
	fmt.Println(n, "were refused")
	dead, _, err := client.DeadLetters(ctx, admin.Filter{Reason: outbox.ReasonHandler}, admin.Page{Limit: 50})
	must(err)
	for _, t := range dead {
		secrets, err := client.Payload(ctx, t.ID) // for those who may see it
		must(err)
		fmt.Printf("task %d, %s: %s: %s\n", t.ID, secrets.Payload, t.Reason, t.LastError)
	}

	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // one, together with whatever else repairs it
		taken, _, err := client.In(tx).Redrive(ctx, admin.Filter{IDs: []int64{1}}, admin.Page{})
		fmt.Println("redriven:", taken.IDs, "skipped:", taken.Skipped)
		return err
	}))
	task, err := client.Task(ctx, 1)
	must(err)
	for _, e := range task.Timeline {
		fmt.Println(e.Kind, string(e.Reason)+e.Actor)
	}
	redriven, _, err := client.EveryPage(ctx, client.Redrive, refused, 100) // the others, at most 100 a second
	must(err)
	fmt.Println("redriven:", redriven)
	runDue(ctx, db, reg)

	purged, _, err := client.Purge(ctx, admin.Filter{All: true}, admin.Page{})
	must(err)
	fmt.Println("purged:", purged.IDs)
	// Output:
	// 3 × mail.example.com: connection refused
	// 1 × no such recipient
	// 3 were refused
	// task 2, "nobody": handler: no such recipient
	// redriven: [1] skipped: []
	// failed attempts
	// redriven ada@example.com
	// redriven: 2
	// task 1: mail to ada in attempt 1
	// task 3: mail to eve in attempt 1
	// task 4: mail to bob in attempt 1
	// purged: [2]
}
