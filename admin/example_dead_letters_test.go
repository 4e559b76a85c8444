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

var mail = outbox.NewTaskType[string]("SEND_MAIL")

// die enqueues mail to the recipients and has its handler fail for good, once each, with the error.
func die(ctx context.Context, db *sql.DB, failure string, recipients ...string) {
	reg := handlers.New()
	handlers.Leased(reg, mail, func(context.Context, *outbox.Task[string]) error {
		return handlers.Dead(errors.New(failure))
	})
	for _, to := range recipients {
		enqueueAll(db, mail.New(to))
	}
	runDue(ctx, db, reg)
}

// deliver runs the mail that is due.
func deliver(ctx context.Context, db *sql.DB) {
	reg := handlers.New()
	handlers.Leased(reg, mail, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Printf("task %d: mail to %s in attempt %d\n", task.ID, task.Payload, task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)
}

// Which errors are frequent, which dead letters have one of them, and the payload of each.
func ExampleClient_DeadLetters() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	die(ctx, db, "mail.example.com: connection refused", "ada", "eve")

	groups, err := client.DeadGroups(ctx, admin.DeadQuery{})
	must(err)
	for _, g := range groups {
		fmt.Printf("%d × %s\n", g.Count, g.Error)
	}
	page, err := client.DeadLetters(ctx, admin.DeadQuery{Filter: admin.DeadFilter{Error: "refused"}, Limit: 50})
	must(err)
	for _, t := range page.Tasks {
		p, err := client.Payload(ctx, t.ID) // for those who may see it
		must(err)
		fmt.Printf("task %d, %s: %s: %s\n", t.ID, p.Payload, t.Reason, t.LastError)
	}
	// Output:
	// 2 × mail.example.com: connection refused
	// 1 × no such recipient
	// task 3, "eve": handler: mail.example.com: connection refused
	// task 2, "ada": handler: mail.example.com: connection refused
}

// After an outage of the mail server: run again what the outage killed, at most 100 a second.
func ExampleClient_Redrive() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	die(ctx, db, "mail.example.com: connection refused", "ada", "eve")

	refused := admin.DeadFilter{Type: "SEND_MAIL", Error: "connection refused"}
	found, err := client.CountDeadLetters(ctx, admin.DeadQuery{Filter: refused})
	must(err)
	done, err := client.Redrive(ctx, refused, admin.Bulk{PerSecond: 100})
	must(err)
	fmt.Println(found.Count, "were refused, redriven:", done.IDs)
	task, err := client.Task(ctx, 2)
	must(err)
	for _, e := range task.Timeline {
		fmt.Println(e.Kind, e.Error+e.Actor)
	}
	deliver(ctx, db)
	// Output:
	// 2 were refused, redriven: [2 3]
	// failed mail.example.com: connection refused
	// redriven ada@example.com
	// task 2: mail to ada in attempt 1
	// task 3: mail to eve in attempt 1
}

// One dead letter, together with the row that made it die.
func ExampleClient_In() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	execute(db, `CREATE TABLE recipient (name text)`)
	die(ctx, db, "no such recipient", "eve")

	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO recipient VALUES ('eve')`); err != nil {
			return err
		}
		done, err := client.In(tx).Redrive(ctx, admin.DeadFilter{IDs: []int64{1}}, admin.Bulk{})
		fmt.Println("redriven:", done.IDs)
		return err
	}))
	deliver(ctx, db)
	// Output:
	// redriven: [1]
	// task 1: mail to eve in attempt 1
}

func ExampleClient_Purge() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	die(ctx, db, "no such recipient", "nobody")
	purged, err := client.Purge(ctx, admin.DeadFilter{Error: "no such recipient"}, admin.Bulk{})
	fmt.Println("purged:", purged.IDs, err)
	// Output: purged: [1] <nil>
}
