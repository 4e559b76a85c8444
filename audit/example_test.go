package audit_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/audit"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// A tool of an app's own cancels a task, and says who did it in the same transaction.
func Example() {
	ctx := context.Background()
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, "SEND_INVOICE", 17)
		return err
	}))

	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		result, err := outbox.Cancel(ctx, tx, 1)
		if err != nil || result == outbox.NotFound {
			return err
		}
		_, err = audit.Write(ctx, tx, audit.Entry{Actor: "ada@example.com", Tool: "backoffice", Action: "cancel", Target: "task 1", Count: 1})
		return err
	})
	relaytest.Must(err)

	entries, err := audit.List(ctx, db, 0, 10) // the next page: before entries[len(entries)-1].EntryID
	relaytest.Must(err)
	for _, e := range entries {
		fmt.Printf("%s: %s, %s of %s, %d task\n", e.Tool, e.Actor, e.Action, e.Target, e.Count)
	}
	// Output: backoffice: ada@example.com, cancel of task 1, 1 task
}
