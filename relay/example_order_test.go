package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// Tasks from anywhere in the queue, in place of the oldest first.
func ExampleOrder() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	check := outbox.NewTaskType[int]("CHECK_LINK")
	var ran []int
	reg := handlers.New()
	handlers.Tx(reg, check, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		ran = append(ran, task.Payload)
		return nil
	})
	enqueueInts(ctx, db, check, 50)
	r, err := relay.New(db, reg, relay.Config{Order: relay.OrderRandom, Workers: 1, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println(len(ran), "links, in the order of enqueueing:", slices.IsSorted(ran))
	slices.Sort(ran)
	fmt.Println("each once:", len(slices.Compact(ran)) == 50)
	// Output:
	// 50 links, in the order of enqueueing: false
	// each once: true
}

// Lower is more urgent: between types that of the handler plus the task's own, within a type the task's own, and
// tasks of one priority in random order.
func Example_priorities() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	mail, report, clean := outbox.NewTaskType[string]("SEND_MAIL"), outbox.NewTaskType[string]("MAKE_REPORT"), outbox.NewTaskType[string]("CLEAN_UP")
	handle := func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		fmt.Println(task.Type, task.Payload)
		return nil
	}
	reg := handlers.New()
	handlers.Tx(reg, mail, handle)
	handlers.Tx(reg, report, handle, handlers.Priority(10))
	handlers.Tx(reg, clean, handle, handlers.Priority(20))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, []outbox.TaskSpec{
			clean.New("the attic"),
			mail.New("newsletter", outbox.Priority(5)),
			mail.New("password", outbox.Priority(-5)),
			report.New("for the boss", outbox.Priority(-25)), // -15 among the types
		})
		return err
	}))
	r, err := relay.New(db, reg, relay.Config{Order: relay.OrderRandom, Workers: 1, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	// Output:
	// MAKE_REPORT for the boss
	// SEND_MAIL password
	// SEND_MAIL newsletter
	// CLEAN_UP the attic
}

// A type that floods the queue and is slow leaves a worker to the others.
func Example_fairness() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	slow, quick := outbox.NewTaskType[int]("SLOW"), outbox.NewTaskType[int]("QUICK")
	done := make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, slow, func(ctx context.Context, _ *outbox.Task[int]) error {
		select {
		case <-done: // it takes for ever, as far as the quick one is concerned
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, handlers.Timeout(time.Minute))
	handlers.Leased(reg, quick, func(context.Context, *outbox.Task[int]) error {
		fmt.Println("the quick one is done")
		close(done)
		return nil
	})
	enqueueInts(ctx, db, slow, 100)
	enqueueInts(ctx, db, quick, 1)
	r, err := relay.New(db, reg, relay.Config{Workers: 5, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	// Output: the quick one is done
}
