package outbox_test

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

// A request enqueues a task, waits until a relay has done it, and answers with its result.
func ExampleWaitFor() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Sum struct{ A, B int }
	add := outbox.NewTaskType[Sum]("ADD")
	reg := handlers.New()
	handlers.Tx(reg, add, func(_ context.Context, _ *sql.Tx, task *outbox.Task[Sum]) error {
		if task.Payload.A < 0 {
			return handlers.Dead(fmt.Errorf("%d is negative", task.Payload.A))
		}
		return task.SetResult(task.Payload.A + task.Payload.B)
	}, handlers.Retention(time.Hour)) // results are in the history
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	must(r.Start(ctx))

	answer := func(s Sum) {
		var task outbox.Enqueued
		must(outbox.InTx(ctx, db, func(tx *sql.Tx) (err error) {
			task, err = add.Enqueue(ctx, tx, s)
			return err
		}))
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := outbox.WaitFor(bounded, db, task.ID); err != nil {
			fmt.Println(err)
			return
		}
		sum, err := outbox.Result[int](ctx, db, task.ID)
		fmt.Println(sum, err)
	}
	answer(Sum{2, 3})
	answer(Sum{-2, 3})
	must(r.Stop(ctx))
	// Output:
	// 5 <nil>
	// outbox: the task is a dead letter: task 2: handler: -2 is negative
}

// While a handler runs, tools show how far it is.
func ExampleTask_SetProgress() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	imports := outbox.NewTaskType[int]("IMPORT")
	enqueueAll(db, imports.New(1000))
	halfway, goOn := make(chan struct{}), make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, imports, func(ctx context.Context, task *outbox.Task[int]) error {
		for n := 0; n < task.Payload; n += 100 {
			if n == 500 {
				close(halfway)
				<-goOn
			}
			done := float64(n+100) / float64(task.Payload)
			if err := task.SetProgress(ctx, done, fmt.Sprintf("%d of %d", n+100, task.Payload)); err != nil {
				return err
			}
		}
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler)})
	must(err)
	must(r.Start(ctx))
	<-halfway
	client, err := admin.New(db, admin.Config{})
	must(err)
	task := admin.Task{}
	for task.Progress == nil || task.Progress.Fraction < 0.5 { // the relay writes it within a second
		task, err = client.Task(ctx, 1)
		must(err)
	}
	fmt.Printf("%.0f %%, %s\n", 100*task.Progress.Fraction, task.Progress.Message)
	close(goOn)
	must(r.Stop(ctx))
	// Output: 50 %, 500 of 1000
}
