package admin_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
)

func execute(db *sql.DB, query string) {
	_, err := db.Exec(query)
	must(err)
}

func ExampleClient_HandBack() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	const dead = "5f3a2c1e-0000-4000-8000-000000000000" // as in outbox.relay
	execute(db, `INSERT INTO outbox.task (task_type, payload, state, attempt, relay_id, lease_token)
		VALUES ('MAKE_REPORT', '12', 'leased', 1, '`+dead+`', gen_random_uuid())`)

	tasks, err := client.HandBack(ctx, dead)
	fmt.Println("handed back:", tasks, err)

	reg := handlers.New()
	report := outbox.NewTaskType[int]("MAKE_REPORT")
	handlers.Leased(reg, report, func(ctx context.Context, task *outbox.Task[int]) error {
		fmt.Println("attempt", task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// handed back: 1 <nil>
	// attempt 2
}

// After a day of bloat: small indexes again, while relays go on.
func ExampleClient_Reindex() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type, payload) SELECT 'RESIZE_IMAGE', '1' FROM generate_series(1, 10000)`)
	execute(db, `DELETE FROM outbox.task`)
	execute(db, `VACUUM outbox.task`) // as autovacuum does; it leaves the indexes large
	all, err := client.Reindex(ctx)
	must(err)
	for _, i := range all {
		if i.Name == "task_pkey" {
			fmt.Println(i.Table, i.Name, "is smaller:", i.BytesAfter < i.BytesBefore)
		}
	}
	// Output: task task_pkey is smaller: true
}

// No relay starts a task of a paused type, whichever process paused it.
func ExampleClient_PauseType() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	resize := outbox.NewTaskType[int]("RESIZE_IMAGE")
	reg := handlers.New()
	handlers.Tx(reg, resize, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		fmt.Println("resize", task.Payload)
		return nil
	})
	must(client.PauseType(ctx, resize.Name()))
	enqueueAll(db, resize.New(1))
	runDue(ctx, db, reg)
	fmt.Println("paused")
	must(client.ResumeType(ctx, resize.Name()))
	runDue(ctx, db, reg)
	// Output:
	// paused
	// resize 1
}

// After a restore that brought the tasks without the counts, and no sequence.
func ExampleClient_Repair() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type, state, unique_key)
		VALUES ('MAKE_REPORT', 'scheduled', 'may')`)
	execute(db, `DELETE FROM outbox.counter_log`)
	found, err := client.Defects(ctx, admin.RepairOptions{})
	must(err)
	for _, d := range found {
		fmt.Println(d.Kind, d.Subject, d.Is, "should be", d.ShouldBe)
	}
	_, err = client.Repair(ctx, admin.RepairOptions{})
	must(err)
	found, err = client.Defects(ctx, admin.RepairOptions{})
	fmt.Println(len(found), "are left", err)
	// Output:
	// count MAKE_REPORT scheduled 0 should be 1
	// unique_key MAKE_REPORT: tasks without their key 1 should be 0
	// 0 are left <nil>
}

// Staging has a dump of production's database: relays run nothing in it until it is adopted, here
// without the tasks that came along.
func ExampleClient_Adopt() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	execute(db, `INSERT INTO outbox.task (task_type) VALUES ('SEND_WELCOME'), ('SEND_WELCOME')`)
	execute(db, `UPDATE outbox.origin SET database_name = 'shop', database_oid = 1, table_oid = 1`) // as the dump has it
	of, err := client.Origin(ctx)
	must(err)
	fmt.Println("a copy:", of.Copy, "of", of.Name)
	adopted, err := client.Adopt(ctx, admin.AdoptOptions{Discard: true})
	must(err)
	fmt.Println("tasks discarded:", adopted.Tasks)
	of, err = client.Origin(ctx)
	fmt.Println("a copy:", of.Copy, err)
	// Output:
	// a copy: true of shop
	// tasks discarded: 2
	// a copy: false <nil>
}

// A tool of an app's own cancels a task, and changes a row of its own: the audit log says by whom, in
// the same transactions.
func ExampleClient_WriteAudit() {
	ctx := context.Background()
	db, client, drop := exampleClient("ada@example.com")
	defer drop()
	execute(db, `CREATE TABLE invoice (invoice_id bigint, paid bool)`)
	enqueueAll(db, outbox.TaskSpec{Type: "SEND_INVOICE", Payload: 17})

	_, err := client.Cancel(ctx, []int64{1}) // writes an entry
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // an action of the app's own
		if _, err := tx.ExecContext(ctx, `UPDATE invoice SET paid = true WHERE invoice_id = 17`); err != nil {
			return err
		}
		_, err := client.In(tx).WriteAudit(ctx, admin.AuditEntry{Action: "mark_paid", Target: "invoice 17"})
		return err
	}))

	page, err := client.Audit(ctx, admin.AuditQuery{Limit: 10})
	must(err)
	for _, e := range page.Entries {
		fmt.Printf("%s: %s, %s of %s, %d task\n", e.Tool, e.Actor, e.Action, e.Target, e.Count)
	}
	// Output:
	// backoffice: ada@example.com, mark_paid of invoice 17, 0 task
	// backoffice: ada@example.com, cancel of task 1, 1 task
}
