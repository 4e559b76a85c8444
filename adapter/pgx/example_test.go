package outboxpgx_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

type Welcome struct{ UserID int64 }

var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")

// examplePool has room for a relay and the app.
func examplePool() (pool *pgxpool.Pool, end func()) {
	_, url, drop := relaytest.ExampleServer()
	config, err := pgxpool.ParseConfig(url)
	relaytest.Must(err)
	config.MaxConns = 12
	pool, err = pgxpool.NewWithConfig(context.Background(), config)
	relaytest.Must(err)
	return pool, func() { pool.Close(); drop() }
}

// A task type, with its options, on a transaction of pgxpool.
func ExampleInTx() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	err := outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		q := outboxpgx.Querier(tx)
		first, err := SendWelcome.Enqueue(ctx, q, Welcome{UserID: 7}, outbox.Unique("7"))
		if err != nil {
			return err
		}
		again, err := SendWelcome.Enqueue(ctx, q, Welcome{UserID: 7}, outbox.Unique("7"))
		fmt.Println(first.Outcome, again.Outcome, first.ID == again.ID)
		return err
	})
	fmt.Println(err)
	// Output:
	// created skipped true
	// <nil>
}

// Tasks of several types in a transaction of the app's own, whose commit it tells the relays of.
func ExampleEnqueueMany() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tasks := []outbox.TaskSpec{SendWelcome.New(Welcome{UserID: 7}), {Type: "COUNT_USERS"}}
		enqueued, err := outboxpgx.EnqueueMany(ctx, tx, tasks)
		fmt.Println(len(enqueued), "tasks")
		return err
	})
	relaytest.Must(err)
	outbox.Wake()
	// Output: 2 tasks
}

// The relay has connections of the app's pool.
func ExampleOpenDB() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	db := outboxpgx.OpenDB(pool)
	defer db.Close()
	relaytest.Must(outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := outboxpgx.Enqueue(ctx, tx, SendWelcome.Name(), Welcome{UserID: 7})
		return err
	}))
	reg := handlers.New()
	handlers.Leased(reg, SendWelcome, func(ctx context.Context, task *outbox.Task[Welcome]) error {
		fmt.Println("mail to user", task.Payload.UserID)
		return nil
	})
	relaytest.RunDue(ctx, db, reg) // relay.New(db, reg, relay.Config{}), which an app starts
	// Output: mail to user 7
}

// A task by the name of its type, in a transaction of pgx.
func ExampleEnqueue() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	relaytest.Must(outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		task, err := outboxpgx.Enqueue(ctx, tx, "SEND_WELCOME", Welcome{UserID: 7})
		fmt.Println(task.ID, task.Outcome)
		return err
	}))
	// Output: 1 created
}

// Functions of package outbox take a pgx.Tx as a Querier.
func ExampleQuerier() {
	ctx := context.Background()
	pool, end := examplePool()
	defer end()
	relaytest.Must(outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		task, err := SendWelcome.Enqueue(ctx, outboxpgx.Querier(tx), Welcome{UserID: 7})
		if err != nil {
			return err
		}
		canceled, err := outbox.Cancel(ctx, outboxpgx.Querier(tx), task.ID)
		fmt.Println(canceled)
		return err
	}))
	// Output: canceled
}
