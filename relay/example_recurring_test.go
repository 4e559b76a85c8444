package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// An import that keeps its place: each iteration takes a page, and what it wrote commits together with the cursor of
// the next one.
func Example_runAgain() {
	type Cursor struct{ After int }
	importPage := outbox.NewTaskType[Cursor]("IMPORT_PAGE")
	source := []string{"Ada", "Grace", "Edsger", "Barbara", "Tony"}

	reg := handlers.New()
	handlers.Tx(reg, importPage, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Cursor]) error {
		from := task.Payload.After
		page := source[from:min(from+2, len(source))]
		for _, name := range page {
			if _, err := tx.ExecContext(ctx, `INSERT INTO person (name) VALUES ($1)`, name); err != nil {
				return err
			}
		}
		fmt.Println("iteration", task.Iterations, "attempt", task.Attempt, page)
		if from+2 >= len(source) {
			return nil // done
		}
		return handlers.RunAgainWith(task, time.Millisecond, Cursor{After: from + 2})
	})

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE person (name text NOT NULL)`)
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := importPage.Enqueue(ctx, tx, Cursor{})
		return err
	}))
	r, err := relay.New(db, reg, relay.Config{Logger: discard()})
	must(err)
	go func() {
		defer stop()
		for n := 0; n < len(source) && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM person`).Scan(&n)
		}
	}()
	must(r.Run(ctx))
	// Output:
	// iteration 0 attempt 1 [Ada Grace]
	// iteration 1 attempt 1 [Edsger Barbara]
	// iteration 2 attempt 1 [Tony]
}

// A time of day that comes twice, as clocks go back, fires once.
func ExampleInZone() {
	newYork, err := time.LoadLocation("America/New_York")
	must(err)
	timing := relay.InZone(newYork, relay.Cron(cron.ParseStandard, "30 1 * * *")) // without a zone
	at := time.Date(2026, 10, 31, 0, 0, 0, 0, newYork)
	for range 3 {
		at = timing.Next(at)
		fmt.Println(at.In(newYork).Format("Jan 2 15:04 MST"))
	}
	// Output:
	// Oct 31 01:30 EDT
	// Nov 1 01:30 EDT
	// Nov 2 01:30 EST
}

// The next firings of a cron expression. Any parser will do; this one is github.com/robfig/cron/v3.
func ExampleCron() {
	timing := relay.Cron(cron.ParseStandard, "0 9 * * MON-FRI")
	at := time.Date(2026, 7, 2, 12, 0, 0, 0, time.UTC) // a Thursday
	for range 3 {
		at = timing.Next(at)
		fmt.Println(at.Format("Mon Jan 2 15:04 MST"))
	}

	db, drop := exampleDatabase()
	defer drop()
	reg, report := handlers.New(), outbox.NewTaskType[int]("REPORT")
	handlers.Leased(reg, report, func(context.Context, *outbox.Task[int]) error { return nil })
	_, err := relay.New(db, reg, relay.Config{Schedules: []relay.Schedule{
		{Name: "report", Timing: relay.Cron(cron.ParseStandard, "9 o'clock"), Task: report.New(1)}}})
	fmt.Println(err)
	// Output:
	// Fri Jul 3 09:00 UTC
	// Mon Jul 6 09:00 UTC
	// Tue Jul 7 09:00 UTC
	// relay: Config.Schedules[0] "report": Timing: Cron: "9 o'clock": expected exactly 5 fields, found 2: [9 o'clock]
}

// Schedules by an interval and by an expression of robfig/cron with a time zone.
func ExampleSchedule() {
	sendReport := outbox.NewTaskType[string]("SEND_REPORT")
	reg := handlers.New()
	handlers.Leased(reg, sendReport, func(ctx context.Context, task *outbox.Task[string]) error {
		fmt.Println(task.Payload, "of", task.RunAt.UTC().Format(time.DateTime))
		return nil
	})
	config := relay.Config{Logger: discard(), Schedules: []relay.Schedule{
		{Name: "daily report", Timing: relay.Cron(cron.ParseStandard, "CRON_TZ=Europe/Berlin 0 9 * * *"),
			Task: sendReport.New("daily report", outbox.Priority(5))},
		{Name: "usage", Timing: relay.Every(7 * 24 * time.Hour), Task: sendReport.New("weekly usage"),
			CatchUp: outbox.CatchUpAll},
	}}

	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	once := func() { // an app calls Run
		r, err := relay.New(db, reg, config)
		must(err)
		must(r.RunOnce(ctx))
	}
	once()
	// As if no relay had run since ten to nine on the first of July.
	_, err := db.ExecContext(ctx, `UPDATE outbox.schedule SET next_at = '2026-07-01 07:00+00' WHERE name = 'daily report'`)
	must(err)
	once()
	// Without it in any Config it would stay in the table until it is removed.
	client, err := admin.New(db, admin.Config{})
	must(err)
	must(client.RemoveSchedule(ctx, "daily report"))
	// Output:
	// daily report of 2026-07-01 07:00:00
}
