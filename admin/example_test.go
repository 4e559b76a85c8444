package admin_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// What the examples share.
var (
	must       = relaytest.Must
	runDue     = relaytest.RunDue
	enqueueAll = relaytest.EnqueueAll
)

// exampleClient is a database with a client, whose actions are noted if it has an actor.
func exampleClient(actor string) (db *sql.DB, client *admin.Client, drop func()) {
	db, drop = relaytest.ExampleDatabase()
	client, err := admin.New(db, admin.Options{Actor: actor, Tool: "backoffice"})
	must(err)
	return db, client, drop
}

// What became of some mail: page by page, and one of them with what it was about.
func ExampleClient_Tasks() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	enqueueAll(db, mail.New("ada@example.com"), mail.New("nobody"), mail.New("bob@example.com"),
		mail.New("eve@example.com", outbox.After(time.Hour)))
	reg := handlers.New()
	handlers.Tx(reg, mail, func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		switch task.Payload {
		case "nobody":
			return handlers.Dead(errors.New("there is no @ in it"))
		case "bob@example.com":
			return handlers.RetryAfter(2*time.Hour, errors.New("451 try again later"))
		}
		return nil
	}, handlers.MaxAttempts(5), handlers.Retention(365*24*time.Hour)) // finished tasks are kept for a year
	runDue(ctx, db, reg)

	for _, state := range []admin.State{admin.Ready, admin.Scheduled, admin.Dead, admin.Finished} {
		for p := (admin.Page{Limit: 1}); ; {
			tasks, next, err := client.Tasks(ctx, "SEND_MAIL", state, p)
			must(err)
			for _, t := range tasks {
				fmt.Printf("%s: task %d, attempt %d: %q\n", t.State, t.ID, t.Attempt, t.LastError)
			}
			if p.After = next; next == "" {
				break
			}
		}
	}
	dead, err := client.Task(ctx, 2)
	must(err)
	secrets, err := client.Payload(ctx, 2) // for those who may see it
	must(err)
	fmt.Printf("task %d is %s by its %s, and was about %s\n", dead.ID, dead.State, dead.Reason, secrets.Payload)
	_, err = client.Task(ctx, 5)
	fmt.Println(err)
	// Output:
	// scheduled: task 4, attempt 0: ""
	// scheduled: task 3, attempt 0: "retry after 2h0m0s: 451 try again later"
	// dead: task 2, attempt 1: "there is no @ in it"
	// finished: task 1, attempt 1: ""
	// task 2 is dead by its handler, and was about "nobody"
	// admin: not found: task 5
}

// Which relays there are and what they run, what holds for each type, and how the counts went.
func ExampleClient_Relays() {
	ctx, stop := context.WithCancel(context.Background())
	db, client, drop := exampleClient("")
	defer drop()
	render := outbox.NewTaskType[int]("RENDER")
	enqueueAll(db, render.New(1), render.New(2))
	must(client.PauseType(ctx, "SEND_MAIL"))
	started, finish := make(chan struct{}), make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, render, func(context.Context, *outbox.Task[int]) error {
		close(started)
		<-finish
		return nil
	}, handlers.MaxRunning(1))
	r, err := relay.New(db, reg, relay.Config{Workers: 4, Logger: slog.New(slog.DiscardHandler),
		Schedules: []relay.Schedule{{Name: "nightly", Timing: relay.Every(24 * time.Hour), Task: render.New(0)}}})
	must(err)
	stopped := make(chan error)
	go func() { stopped <- r.Run(ctx) }()
	<-started

	relays, err := client.Relays(ctx)
	must(err)
	for _, r := range relays {
		fmt.Printf("a relay with handlers for %q, %d workers, alive %t\n", r.Types, r.Workers, r.Alive)
		for _, run := range r.Runs {
			fmt.Printf("  runs %s %d, lost %t\n", run.Type, run.TaskIDs, run.Lost)
		}
	}
	types, err := client.Types(ctx)
	must(err)
	for _, t := range types {
		fmt.Printf("%s: ready %d, leased %d, paused %t, at once %d, relays %d\n",
			t.Type, t.Ready, t.Leased, t.Paused, t.MaxRunning, t.Relays)
	}
	for range time.Tick(50 * time.Millisecond) { // a relay registers them and takes a sample at its start
		samples, err := client.Samples(ctx, "RENDER", time.Hour)
		must(err)
		schedules, err := client.Schedules(ctx)
		must(err)
		if len(samples) > 0 && len(schedules) > 0 {
			fmt.Printf("%s enqueues %s, paused %t\n", schedules[0].Name, schedules[0].Type, schedules[0].Paused)
			break
		}
	}
	stop()
	close(finish)
	must(<-stopped)
	// Output:
	// a relay with handlers for ["RENDER"], 4 workers, alive true
	//   runs RENDER [1], lost false
	// RENDER: ready 1, leased 1, paused false, at once 1, relays 1
	// SEND_MAIL: ready 0, leased 0, paused true, at once 0, relays 0
	// nightly enqueues RENDER, paused false
}
