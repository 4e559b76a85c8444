package handlers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

var (
	phone     = outbox.NewTaskType[string]("CALL")
	errAnswer = errors.New("503 Service Unavailable")
)

// failing is a handler whose server does not answer.
func failing(context.Context, *outbox.Task[string]) error { return errAnswer }

// answered is a handler whose server answers.
func answered(context.Context, *outbox.Task[string]) error { return nil }

// run runs one task with a Leased handler, and prints what became of the task.
func run(h func(ctx context.Context, task *outbox.Task[string]) error) {
	reg := handlers.New(handlers.NoJitter())
	handlers.Leased(reg, phone, h)
	ran(reg)
}

// ran runs one task with a registry, and prints what became of the task.
func ran(reg *handlers.Registry, opts ...outbox.Option) {
	db, drop := exampleDatabase()
	defer drop()
	enqueueAll(db, phone.New("Ada", opts...))
	runDue(context.Background(), db, reg)
	printRow(db, `SELECT coalesce(
		(SELECT format('%s in %s min, attempts: %s, last error: %s', state, round(extract(epoch FROM run_at - now()) / 60),
			attempt, coalesce(last_error, 'none')) FROM outbox.task),
		(SELECT format('dead letter: %s: %s', reason, last_error) FROM outbox.dead_task),
		(SELECT 'finished: ' || (payload #>> '{}') FROM outbox.done_task), 'gone')`)
}

// No retry will help: a person should look.
func ExampleDead() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.Dead(errors.New("the address does not exist"))
	})
	// Output: dead letter: handler: the address does not exist
}

// There is nothing left to do: the task is done, and the log has the error.
func ExampleDiscard() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.Discard(errors.New("the user has left"))
	})
	// Output: gone
}

// The server said Retry-After: 600. No attempt is counted.
func ExampleRetryAfter() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.RetryAfter(10*time.Minute, errAnswer)
	})
	// Output: scheduled in 10 min, attempts: 0, last error: retry after 10m0s: 503 Service Unavailable
}

// It is not yet time, which is no failure.
func ExampleSnooze() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.Snooze(time.Hour)
	})
	// Output: scheduled in 60 min, attempts: 0, last error: none
}

// It is not yet time, and tools show why.
func ExampleSnoozeWith() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.SnoozeWith(time.Hour, errors.New("the invoice is a draft"))
	})
	// Output: scheduled in 60 min, attempts: 0, last error: snooze after 1h0m0s: the invoice is a draft
}

// A task that repeats itself: it is done for now, and runs again in an hour.
func ExampleRunAgain() {
	run(func(context.Context, *outbox.Task[string]) error {
		return handlers.RunAgain(time.Hour)
	})
	// Output: scheduled in 60 min, attempts: 0, last error: none
}

// The next iteration has a payload of its own, such as a cursor.
func ExampleRunAgainWith() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	pages, reg := outbox.NewTaskType[int]("IMPORT_PAGE"), handlers.New()
	handlers.Tx(reg, pages, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		fmt.Println("page", task.Payload)
		if task.Payload == 2 {
			return nil // the last page
		}
		return handlers.RunAgainWith(task, 0, task.Payload+1)
	})
	enqueueAll(db, pages.New(1))
	runDue(ctx, db, reg)
	runDue(ctx, db, reg)
	// Output:
	// page 1
	// page 2
}

// A Leased handler calls a server, with a key by which the server knows a repetition.
func ExampleLeased() {
	reg := handlers.New()
	handlers.Leased(reg, phone, func(ctx context.Context, task *outbox.Task[string]) error {
		if len(task.Key()) != 36 { // the Idempotency-Key of the request
			return errors.New("the key is no UUID")
		}
		fmt.Println("call", task.Payload, "in attempt", task.Attempt)
		return nil
	}, handlers.Timeout(time.Minute))
	ran(reg)
	// Output:
	// call Ada in attempt 1
	// gone
}

// The first failed attempt is the last one.
func ExampleMaxAttempts() {
	reg := handlers.New()
	handlers.Leased(reg, phone, failing, handlers.MaxAttempts(1))
	ran(reg)
	// Output: dead letter: attempts: 503 Service Unavailable
}

// The next attempt would be due in an hour, which is too late.
func ExampleMaxElapsed() {
	hourly := func(int, error) (time.Duration, bool) { return time.Hour, true }
	reg := handlers.New()
	handlers.Leased(reg, phone, failing, handlers.MaxElapsed(30*time.Minute), handlers.Backoff(hourly))
	ran(reg)
	// Output: dead letter: handler: 503 Service Unavailable
}

// Without jitter the wait is exactly that of the backoff.
func ExampleNoJitter() {
	hourly := func(int, error) (time.Duration, bool) { return time.Hour, true }
	reg := handlers.New()
	handlers.Leased(reg, phone, failing, handlers.Backoff(hourly), handlers.NoJitter())
	ran(reg)
	// Output: scheduled in 60 min, attempts: 1, last error: 503 Service Unavailable
}

// A finished task is kept for a day, where tools and outbox.Result find it.
func ExampleRetention() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answered, handlers.Retention(24*time.Hour))
	ran(reg)
	// Output: finished: Ada
}

// A task that expired before it began is removed, and makes no dead letter.
func ExampleDiscardExpired() {
	reg := handlers.New(handlers.DiscardExpired())
	handlers.Leased(reg, phone, func(context.Context, *outbox.Task[string]) error {
		fmt.Println("it is not called")
		return nil
	})
	ran(reg, outbox.ExpiresAt(time.Now().Add(-time.Minute)))
	// Output: gone
}
