package admin_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
)

// A tool of an app's own cancels a task, and changes a row of its own: who did it is written in the same transactions.
func ExampleClient_WriteAudit() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE invoice (invoice_id bigint, paid bool)`); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, tx, "SEND_INVOICE", 17)
		return err
	}))

	client, err := admin.New(db, admin.Options{Actor: "ada@example.com", Tool: "backoffice"})
	must(err)
	_, _, err = client.Cancel(ctx, 1) // which is noted
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // an action of the app's own
		if _, err := tx.ExecContext(ctx, `UPDATE invoice SET paid = true WHERE invoice_id = 17`); err != nil {
			return err
		}
		_, err := client.In(tx).WriteAudit(ctx, admin.Entry{Action: "mark_paid", Target: "invoice 17"})
		return err
	}))

	entries, _, err := client.Audit(ctx, admin.Page{Limit: 10})
	must(err)
	for _, e := range entries {
		fmt.Printf("%s: %s, %s of %s, %d task\n", e.Tool, e.Actor, e.Action, e.Target, e.Count)
	}
	// Output:
	// backoffice: ada@example.com, mark_paid of invoice 17, 0 task
	// backoffice: ada@example.com, cancel of task 1, 1 task
}
