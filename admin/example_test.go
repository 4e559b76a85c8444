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
	"github.com/txoutbox/outbox/internal/testing/relaytest"
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
	client, err := admin.New(db, admin.Config{Actor: actor, Tool: "backoffice"})
	must(err)
	return db, client, drop
}

// What became of some mail, page by page.
func ExampleClient_Tasks() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"), mail.New("bob"), mail.New("eve", outbox.After(time.Hour)))
	reg := handlers.New()
	handlers.Tx(reg, mail, func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		if task.Payload == "bob" {
			return handlers.RetryAfter(2*time.Hour, errors.New("451 try again later"))
		}
		return nil
	}, handlers.Retention(365*24*time.Hour)) // finished tasks are kept for a year
	runDue(ctx, db, reg)

	for _, state := range []admin.State{admin.StateScheduled, admin.StateFinished} {
		for q := (admin.TaskQuery{Type: "SEND_MAIL", State: state, Limit: 1}); ; {
			page, err := client.Tasks(ctx, q)
			must(err)
			for _, t := range page.Tasks {
				fmt.Printf("%s: task %d, attempt %d: %q\n", t.State, t.ID, t.Attempt, t.LastError)
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	_, err := client.Task(ctx, 4)
	fmt.Println(err)
	// Output:
	// scheduled: task 3, attempt 0: ""
	// scheduled: task 2, attempt 0: "retry after 2h0m0s: 451 try again later"
	// finished: task 1, attempt 1: ""
	// admin: not found: task 4
}

// Which relays there are, and which tasks they run.
func ExampleClient_Relays() {
	ctx, stop := context.WithCancel(context.Background())
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"))
	started, finish := make(chan struct{}), make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, mail, func(context.Context, *outbox.Task[string]) error {
		close(started)
		<-finish
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Workers: 4, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	stopped := make(chan error)
	go func() { stopped <- r.Run(ctx) }()
	<-started

	relays, err := client.Relays(ctx)
	must(err)
	for _, r := range relays {
		fmt.Printf("handlers for %q, %d workers, alive %t\n", r.Types, r.Workers, r.Alive)
		for _, run := range r.Runs {
			fmt.Printf("runs %s %d, lost %t\n", run.Type, run.TaskIDs, run.Lost)
		}
	}
	stop()
	close(finish)
	must(<-stopped)
	// Output:
	// handlers for ["SEND_MAIL"], 4 workers, alive true
	// runs SEND_MAIL [1], lost false
}

// What holds for each type, which schedules there are, and how the counts went.
func ExampleClient_Types() {
	ctx := context.Background()
	db, client, drop := exampleClient("")
	defer drop()
	enqueueAll(db, mail.New("ada"), mail.New("bob"))
	must(client.PauseType(ctx, "SEND_MAIL"))
	execute(db, `INSERT INTO outbox.sample (at, task_type, ready, scheduled, leased, waiting, dead, finished, failed,
		oldest_ready) VALUES (now(), 'SEND_MAIL', 2, 0, 0, 0, 0, 7, 0, 0)`) // as a relay does each minute

	types, err := client.Types(ctx)
	must(err)
	for _, t := range types {
		fmt.Printf("%s: ready %d, paused %t, relays %d\n", t.Type, t.Ready, t.Paused, t.Relays)
	}
	samples, err := client.Samples(ctx, admin.SampleQuery{Type: "SEND_MAIL", Last: time.Hour})
	must(err)
	for _, s := range samples {
		fmt.Printf("ready %d, finished %d\n", s.Ready, s.Finished)
	}
	// Output:
	// SEND_MAIL: ready 2, paused true, relays 0
	// ready 2, finished 7
}
