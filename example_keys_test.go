package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// Changes of one account are sent in their order; accounts do not wait for each other.
func ExampleOrderedBy() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Change struct {
		Account string
		Version int
	}
	send := outbox.NewTaskType[Change]("SEND_CHANGE")
	enqueueAll(db,
		send.New(Change{"ada", 1}, outbox.OrderedBy("ada")),
		send.New(Change{"ada", 2}, outbox.OrderedBy("ada"), outbox.Priority(-10)), // more urgent, and still second
		send.New(Change{"eve", 1}, outbox.OrderedBy("eve")),
	)
	reg, busy := handlers.New(), true
	handlers.Leased(reg, send, func(_ context.Context, task *outbox.Task[Change]) error {
		fmt.Println(task.OrderingKey, task.Payload.Version)
		if task.Payload == (Change{"ada", 1}) && busy {
			return handlers.RetryAfter(time.Hour, errors.New("the server is busy"))
		}
		return nil
	})
	runDue(ctx, db, reg)
	busy = false
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error { // the server is back, and nobody wants to wait
		result, err := outbox.RunNow(ctx, tx, 1)
		fmt.Println("it is", result)
		return err
	}))
	runDue(ctx, db, reg)
	// Output:
	// ada 1
	// eve 1
	// it is due
	// ada 1
	// ada 2
}

// Where a later task is better than none: what fails steps out of the order, and its key goes on.
func ExampleSkipFailed() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	show := outbox.NewTaskType[int]("SHOW_PRICE", outbox.OrderedBy("bread"), outbox.SkipFailed())
	enqueueAll(db, show.New(1), show.New(2), show.New(3))
	reg := handlers.New()
	handlers.Leased(reg, show, func(_ context.Context, task *outbox.Task[int]) error {
		if task.Payload == 2 {
			fmt.Println("2 fails")
			return errors.New("the display is off")
		}
		fmt.Println(task.Payload)
		return nil
	}, handlers.Backoff(func(int, error) (time.Duration, bool) { return time.Hour, true }))
	runDue(ctx, db, reg)
	// Output:
	// 1
	// 2 fails
	// 3
}

// A search index is rebuilt once for many changes of a document, and again if one comes while it is
// rebuilt.
func ExampleUnique() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	type Document struct{ ID int }
	index := outbox.NewTaskType[Document]("INDEX_DOCUMENT")
	changed := func(id int) {
		err := outbox.InTx(ctx, db, func(tx *sql.Tx) error { // with the change itself
			got, err := index.Enqueue(ctx, tx, Document{id}, outbox.UniquePayload()) // or Unique(fmt.Sprint(id))
			fmt.Println("document", id, got.Outcome)
			return err
		})
		must(err)
	}

	changed(7)
	changed(7)
	changed(8)
	reg := handlers.New()
	first := true
	handlers.Tx(reg, index, func(_ context.Context, _ *sql.Tx, task *outbox.Task[Document]) error {
		fmt.Println("index", task.Payload.ID)
		if task.Payload.ID == 7 && first {
			first = false
			changed(7) // by somebody else, meanwhile
		}
		return nil
	})
	runDue(ctx, db, reg)
	// Output:
	// document 7 created
	// document 7 skipped
	// document 8 created
	// index 7
	// document 7 created
	// index 8
	// index 7
}

// A bulk push that creates, updates or skips, told per task; ConflictReschedule with After is a
// debounce.
func ExampleEnqueueMany_unique() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	digest := outbox.NewTaskType[string]("SEND_DIGEST", outbox.After(10*time.Minute))
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		got, err := outbox.EnqueueMany(ctx, tx, []outbox.TaskSpec{
			digest.New("one message", outbox.Unique("ada")),
			digest.New("one message", outbox.Unique("eve")),
			digest.New("two messages", outbox.Unique("ada"), outbox.OnConflict(outbox.ConflictReplace)),
			digest.New("two messages", outbox.Unique("eve"), outbox.OnConflict(outbox.ConflictReschedule)),
			digest.New("three messages", outbox.Unique("eve")),
		})
		for _, g := range got {
			fmt.Println(g.ID == got[0].ID, g.Outcome)
		}
		return err
	})
	must(err)
	// Output:
	// true created
	// false created
	// true updated
	// false updated
	// false skipped
}
