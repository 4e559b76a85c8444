package doctor_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

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

// checked runs the checks on a database in which one task waits, and prints how bad it is.
func checked(opts ...doctor.Option) []doctor.Finding {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	relaytest.EnqueueAll(db, outbox.TaskSpec{Type: "SEND_MAIL"})
	found, err := doctor.Check(context.Background(), db, opts...)
	relaytest.Must(err)
	return found
}

// A job of an app looks once an hour, and tells somebody.
func ExampleCheck() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	found, err := doctor.Check(context.Background(), db)
	relaytest.Must(err)
	for _, f := range found {
		if f.Check == "schema-version" {
			fmt.Println(f.Check, f.Severity)
		}
	}
	// Output: schema-version ok
}

// The exit code of a tool.
func ExampleWorst() {
	found := []doctor.Finding{{Severity: doctor.SeverityOK}, {Severity: doctor.SeverityCritical},
		{Severity: doctor.SeverityInfo}}
	fmt.Println(doctor.Worst(found))
	// Output: critical
}

// Somebody is told of warnings and of all that is worse.
func ExampleSeverity_AtLeast() {
	fmt.Println(doctor.SeverityCritical.AtLeast(doctor.SeverityWarning))
	fmt.Println(doctor.SeverityInfo.AtLeast(doctor.SeverityWarning))
	// Output:
	// true
	// false
}

// Why one task waits, among the other findings.
func ExampleTask() {
	for _, f := range checked(doctor.Task(1)) {
		if f.Check == "task" {
			fmt.Println(f.Severity, f.Message)
		}
	}
	// Output: warning no relay is alive
}

// The checks of a large database have more time.
func ExampleTimeout() {
	found := checked(doctor.Timeout(30 * time.Second))
	fmt.Println(doctor.Worst(found))
	// Output: critical
}

// Transactions that are open for a minute are reported, and tasks that wait for ten.
func ExampleHeldFor() {
	found := checked(doctor.HeldFor(time.Minute), doctor.StarvingFor(10*time.Minute))
	fmt.Println(doctor.Worst(found))
	// Output: critical
}

// A type whose tasks may wait for an hour.
func ExampleStarvingFor() {
	found := checked(doctor.StarvingFor(time.Hour))
	fmt.Println(doctor.Worst(found))
	// Output: critical
}

// The outbox of a tenant, whose tables are missing.
func ExampleSchema() {
	for _, f := range checked(doctor.Schema("acme")) {
		if f.Check == "schema-version" {
			fmt.Println(f.Severity)
		}
	}
	// Output: critical
}
