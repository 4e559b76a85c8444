package admin_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type report struct{ Pages int }

func ExampleClient_HandBack() {
	db, drop := exampleDatabase()
	defer drop()
	const dead = "5f3a2c1e-0000-4000-8000-000000000000" // as in outbox.relay
	_, _ = db.Exec(`INSERT INTO outbox.task (task_type, payload, state, attempt, relay_id, lease_token)
		VALUES ('MAKE_REPORT', '{"Pages": 1}', 'leased', 1, $1, gen_random_uuid())`, dead)

	client, err := admin.New(db, admin.Options{})
	must(err)
	tasks, err := client.HandBack(context.Background(), dead)
	fmt.Println("handed back:", tasks, err)

	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[report]("MAKE_REPORT"), func(ctx context.Context, task *outbox.Task[report]) error {
		fmt.Println("attempt", task.Attempt)
		return nil
	})
	runDue(context.Background(), db, reg)
	// Output:
	// handed back: 1 <nil>
	// attempt 2
}

// After a day of bloat: small indexes again, while relays go on.
func ExampleClient_Reindex() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `INSERT INTO outbox.task (task_type, payload) SELECT 'RESIZE_IMAGE', '1' FROM generate_series(1, 10000)`)
	must(err)
	_, err = db.ExecContext(ctx, `DELETE FROM outbox.task`)
	must(err)
	_, err = db.ExecContext(ctx, `VACUUM outbox.task`) // as autovacuum does; it leaves the indexes large
	must(err)
	client, err := admin.New(db, admin.Options{})
	must(err)
	all, err := client.Reindex(ctx)
	must(err)
	for _, i := range all {
		if i.Name == "task_pkey" {
			fmt.Println(i.Table, i.Name, "is smaller:", i.After < i.Before)
		}
	}
	// Output: task task_pkey is smaller: true
}

// While a schedule is paused its firings are passed over.
func ExampleClient_PauseSchedule() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	backUp := outbox.NewTaskType[string]("BACK_UP")
	reg := handlers.New()
	handlers.Leased(reg, backUp, func(_ context.Context, task *outbox.Task[string]) error {
		fmt.Println("back up", task.Payload)
		return nil
	})
	once := func() {
		// As if the schedule was due.
		_, err := db.ExecContext(ctx, `UPDATE outbox.schedule SET next_at = now() - interval '1 minute'`)
		must(err)
		r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler), Schedules: relay.Schedules{
			{Name: "nightly", Timing: relay.Every(24 * time.Hour), Task: backUp.New("the database")},
		}})
		must(err)
		must(r.RunOnce(ctx))
	}

	client, err := admin.New(db, admin.Options{})
	must(err)
	fmt.Println(client.PauseSchedule(ctx, "nightly")) // no relay has been here yet
	once()
	must(client.PauseSchedule(ctx, "nightly"))
	once()
	fmt.Println("it was due, and paused")
	must(client.ResumeSchedule(ctx, "nightly"))
	once()
	// Output:
	// admin: not found: schedule "nightly"
	// it was due, and paused
	// back up the database
}

// No relay starts a task of a paused type, whichever process paused it.
func ExampleClient_PauseType() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	resize := outbox.NewTaskType[int]("RESIZE_IMAGE")
	reg := handlers.New()
	handlers.Tx(reg, resize, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		fmt.Println("resize", task.Payload)
		return nil
	})
	client, err := admin.New(db, admin.Options{})
	must(err)
	must(client.PauseType(ctx, resize.Name()))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := resize.Enqueue(ctx, tx, 1)
		return err
	}))
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
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `INSERT INTO outbox.task (task_type, state, unique_key)
		VALUES ('MAKE_REPORT', 'scheduled', 'may')`)
	must(err)
	_, err = db.ExecContext(ctx, `DELETE FROM outbox.counter_log`)
	must(err)
	client, err := admin.New(db, admin.Options{})
	must(err)
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
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `INSERT INTO outbox.task (task_type) VALUES ('SEND_WELCOME'), ('SEND_WELCOME')`)
	must(err)
	_, err = db.ExecContext(ctx, `UPDATE outbox.origin SET database_name = 'shop', database_oid = 1, table_oid = 1`) // as the dump has it
	must(err)
	client, err := admin.New(db, admin.Options{})
	must(err)
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
