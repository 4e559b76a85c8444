package outbox_test

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
	"github.com/txoutbox/outbox/relay"
)

// A worker stalls in the middle of its work, and another takes the task over. Both end, and only
// the one that holds the lease can write.
func ExampleTask_Complete() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE charge (task_id bigint, by text)`)
	must(err)
	pay := outbox.NewTaskType[int]("PAY")
	enqueueAll(db, pay.New(42))
	work := func(name string, before func()) *handlers.Registry {
		reg := handlers.New()
		handlers.Leased(reg, pay, func(ctx context.Context, task *outbox.Task[int]) error {
			before() // the slow part: no transaction is open
			err := task.Complete(context.WithoutCancel(ctx), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO charge VALUES ($1, $2)`, task.ID, name)
				return err
			})
			fmt.Printf("%s, attempt %d: lease lost: %t\n", name, task.Attempt, errors.Is(err, outbox.ErrLeaseLost))
			return err
		})
		return reg
	}

	begun, wakeUp := make(chan struct{}), make(chan struct{})
	first, err := relay.New(db, work("the first worker", func() { close(begun); <-wakeUp }),
		relay.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
	must(err)
	stopping, stop := context.WithCancel(ctx)
	must(first.Start(stopping))
	<-begun
	stop()
	// A relay takes over by itself, 10 s after the last heartbeat; an operator need not wait.
	var id string
	must(db.QueryRowContext(ctx, `SELECT relay_id FROM outbox.task`).Scan(&id))
	client, err := admin.New(db, admin.Config{})
	must(err)
	_, err = client.HandBack(ctx, id)
	must(err)
	runDue(ctx, db, work("the second worker", func() {}))
	close(wakeUp)
	must(first.Stop(ctx))

	var rows int
	must(db.QueryRowContext(ctx, `SELECT count(*) FROM charge`).Scan(&rows))
	fmt.Println("charges:", rows)
	// Output:
	// the second worker, attempt 2: lease lost: false
	// the first worker, attempt 1: lease lost: true
	// charges: 1
}

// A call that leaves the database has the task's key, so its receiver can tell a repetition.
func ExampleTask_Key() {
	db, drop := exampleDatabase()
	defer drop()
	pay, reg, calls, payments := outbox.NewTaskType[int]("PAY"), handlers.New(), 0, map[string]int{}
	handlers.Leased(reg, pay, func(_ context.Context, task *outbox.Task[int]) error {
		calls++
		payments[task.Key()] = task.Payload // the provider knows its payments by the key
		if task.Attempt == 1 {
			return errors.New("the answer is lost")
		}
		return nil
	}, handlers.Backoff(func(int, error) (time.Duration, bool) { return 0, true }))
	enqueueAll(db, pay.New(42))
	runDue(context.Background(), db, reg)
	fmt.Println("calls:", calls, "payments:", len(payments))
	// Output: calls: 2 payments: 1
}
