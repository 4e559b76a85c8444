package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// show enqueues tasks, and prints each as PostgreSQL has it.
func show(column string, tasks ...outbox.TaskSpec) {
	db, drop := exampleDatabase()
	defer drop()
	enqueueAll(db, tasks...)
	rows, err := db.Query(`SELECT task_type || ': ' || (` + column + `) FROM outbox.task ORDER BY task_id`)
	must(err)
	defer rows.Close()
	for rows.Next() {
		var text string
		must(rows.Scan(&text))
		fmt.Println(text)
	}
	must(rows.Err())
}

// A task type has defaults, which one Enqueue can override.
func ExampleNewTaskType() {
	type Welcome struct {
		UserID int64 `json:"user_id"`
	}
	welcome := outbox.NewTaskType[Welcome]("SEND_WELCOME", outbox.Priority(5), outbox.MaxAttempts(3))
	show("payload::text || ' ' || priority",
		welcome.New(Welcome{UserID: 7}),
		welcome.New(Welcome{UserID: 8}, outbox.Priority(0)))
	// Output:
	// SEND_WELCOME: {"user_id": 7} 5
	// SEND_WELCOME: {"user_id": 8} 0
}

// A reminder is due an hour after it was enqueued, by PostgreSQL's clock.
func ExampleAfter() {
	remind := outbox.NewTaskType[int]("REMIND")
	show("state || ' in ' || date_trunc('minute', run_at - created_at)", remind.New(7, outbox.After(time.Hour)))
	// Output: REMIND: scheduled in 01:00:00
}

// A report is due at a time; a time that has passed makes it due at once.
func ExampleRunAt() {
	report := outbox.NewTaskType[int]("SEND_REPORT")
	show("state",
		report.New(7, outbox.RunAt(time.Now().Add(time.Hour))),
		report.New(8, outbox.RunAt(time.Date(2026, 7, 1, 9, 0, 0, 0, time.UTC))))
	// Output:
	// SEND_REPORT: scheduled
	// SEND_REPORT: ready
}

// A code to log in with is of no use later.
func ExampleExpiresAt() {
	end := time.Date(2100, 1, 1, 12, 30, 0, 0, time.UTC) // of the session
	code := outbox.NewTaskType[string]("SEND_CODE")
	show("to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
		code.New("ada@example.com", outbox.ExpiresAt(end)))
	// Output: SEND_CODE: 2100-01-01 12:30
}

// The urgent mail runs first, though it was enqueued last.
func ExamplePriority() {
	db, drop := exampleDatabase()
	defer drop()
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	enqueueAll(db, mail.New("a newsletter"), mail.New("a new password", outbox.Priority(-10)))
	runDue(context.Background(), db, printMail())
	// Output:
	// mail to a new password
	// mail to a newsletter
}

// The type starts each task up to 20 times, this one only once.
func ExampleMaxAttempts() {
	db, drop := exampleDatabase()
	defer drop()
	pay, reg := outbox.NewTaskType[int]("PAY"), handlers.New()
	handlers.Leased(reg, pay, func(_ context.Context, task *outbox.Task[int]) error {
		fmt.Println("attempt", task.Attempt, "of", task.MaxAttempts)
		return errors.New("no answer")
	})
	enqueueAll(db, pay.New(7), pay.New(8, outbox.MaxAttempts(1)))
	runDue(context.Background(), db, reg)
	stats, err := outbox.Stats(context.Background(), db)
	must(err)
	fmt.Println("retrying:", stats[0].Retrying, "dead:", stats[0].Dead)
	// Unordered output:
	// attempt 1 of 20
	// attempt 1 of 1
	// retrying: 1 dead: 1
}

// One import has more time than the others of its type.
func ExampleTimeout() {
	db, drop := exampleDatabase()
	defer drop()
	imports, reg := outbox.NewTaskType[string]("IMPORT"), handlers.New()
	handlers.Leased(reg, imports, func(ctx context.Context, task *outbox.Task[string]) error {
		deadline, _ := ctx.Deadline()
		fmt.Println(task.Payload, time.Until(deadline).Round(time.Minute))
		return nil
	}, handlers.Timeout(10*time.Minute))
	enqueueAll(db, imports.New("small.csv"), imports.New("large.csv", outbox.Timeout(2*time.Hour)))
	runDue(context.Background(), db, reg)
	// Unordered output:
	// small.csv 10m0s
	// large.csv 2h0m0s
}

// A payload above the limit is refused before any SQL is sent, and the transaction stays usable.
func ExampleMaxPayload() {
	db, drop := exampleDatabase()
	defer drop()
	ctx, note := context.Background(), outbox.NewTaskType[string]("NOTE", outbox.MaxPayload(100))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := note.Enqueue(ctx, tx, strings.Repeat("a", 1000))
		fmt.Println(errors.Is(err, outbox.ErrPayloadTooLarge))
		_, err = note.Enqueue(ctx, tx, "a short note")
		return err
	}))
	// Output: true
}

// Headers go with the task to its handler, beside the payload.
func ExampleHeaders() {
	mail := outbox.NewTaskType[string]("SEND_MAIL")
	show("headers::text", mail.New("ada@example.com", outbox.Headers(map[string]string{"request": "4f1c"})))
	// Output: SEND_MAIL: {"request": "4f1c"}
}

// AddHeaders keeps the headers of the task type; Headers would replace them.
func ExampleAddHeaders() {
	mail := outbox.NewTaskType[string]("SEND_MAIL", outbox.Headers(map[string]string{"app": "shop"}))
	show("headers::text", mail.New("ada@example.com", outbox.AddHeaders(map[string]string{"request": "4f1c"})))
	// Output: SEND_MAIL: {"app": "shop", "request": "4f1c"}
}

// Two equal payloads are one waiting task.
func ExampleUniquePayload() {
	type Document struct{ ID int }
	index := outbox.NewTaskType[Document]("INDEX_DOCUMENT", outbox.UniquePayload())
	show("payload::text", index.New(Document{7}), index.New(Document{7}), index.New(Document{8}))
	// Output:
	// INDEX_DOCUMENT: {"ID": 7}
	// INDEX_DOCUMENT: {"ID": 8}
}

// The waiting digest gets the newer payload.
func ExampleOnConflict() {
	digest := outbox.NewTaskType[string]("SEND_DIGEST", outbox.Unique("ada"), outbox.OnConflict(outbox.ConflictReplace))
	show("payload::text", digest.New("one message"), digest.New("two messages"))
	// Output: SEND_DIGEST: "two messages"
}

// While the synchronization of an account runs, no second one is made.
func ExampleUntilDone() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	sync := outbox.NewTaskType[string]("SYNC", outbox.UniquePayload(outbox.UntilDone()))
	enqueue := func() {
		must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			e, err := sync.Enqueue(ctx, tx, "ada")
			fmt.Println(e.Outcome)
			return err
		}))
	}
	enqueue()
	reg := handlers.New()
	handlers.Leased(reg, sync, func(context.Context, *outbox.Task[string]) error {
		enqueue() // by another request, meanwhile
		return nil
	})
	runDue(ctx, db, reg)
	enqueue()
	// Output:
	// created
	// skipped
	// created
}
