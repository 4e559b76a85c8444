package doctor_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// A task waits while no relay runs, and somebody has switched autovacuum off for the table of tasks.
func Example() {
	ctx := context.Background()
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `ALTER TABLE outbox.task SET (autovacuum_enabled = off)`); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, tx, "SEND_MAIL", map[string]string{"to": "ada@example.com"})
		return err
	}))

	found, err := doctor.Check(ctx, db)
	relaytest.Must(err)
	for _, f := range found {
		if f.Check == "durability" || f.Check == "server-version" { // the examples' server runs with fsync off, and may be old
			continue
		}
		if f.Severity.AtLeast(doctor.SeverityWarning) {
			fmt.Printf("%v: %s: %s\n  %s\n", f.Severity, f.Check, f.Message, f.Remedy)
		}
	}
	// Output:
	// critical: relays: no relay is alive, and 1 task is ready
	//   start a process that calls Relay.Run, and its log says why it ends
	// warning: autovacuum: autovacuum is off for the table task: its dead rows pile up and make claims slow
	//   ALTER TABLE outbox.task RESET (autovacuum_enabled)
	// warning: unhandled-type: no living relay has a handler for the type SEND_MAIL: 1 task waits, which counts as no attempt
	//   register a handler for it in the relays, or start those that have it
}
