package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

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

// A bulk push that creates, updates or skips, told per task; Reschedule with After is a debounce.
func ExampleEnqueueMany_unique() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	digest := outbox.NewTaskType[string]("SEND_DIGEST", outbox.After(10*time.Minute))
	err := outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		got, err := outbox.EnqueueMany(ctx, tx, []outbox.NewTask{
			digest.New("one message", outbox.Unique("ada")),
			digest.New("one message", outbox.Unique("eve")),
			digest.New("two messages", outbox.Unique("ada"), outbox.OnConflict(outbox.Replace)),
			digest.New("two messages", outbox.Unique("eve"), outbox.OnConflict(outbox.Reschedule)),
			digest.New("three messages", outbox.Unique("eve")),
		})
		for _, g := range got {
			fmt.Println(g.TaskID == got[0].TaskID, g.Outcome)
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
