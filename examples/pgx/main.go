// Pgx adds the outbox to an app on pgxpool: tasks are enqueued on its own transactions, and the
// relay has connections of the same pool.
//
//	go run ./examples/pgx
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/txoutbox/outbox"
	outboxpgx "github.com/txoutbox/outbox/adapter/pgx"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type receipt struct{ OrderID int64 }

var sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")

// placeOrder commits the order with its task, and wakes the relay. With a transaction of your own
// (pool.Begin, pgx.BeginFunc) call outbox.Wake after its commit.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, email string) (id int64, err error) {
	err = outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `INSERT INTO shop_order (email) VALUES ($1) RETURNING order_id`,
			email).Scan(&id); err != nil {
			return err
		}
		_, err := sendReceipt.Enqueue(ctx, outboxpgx.Querier(tx), receipt{id}, outbox.OrderedBy(email))
		return err
	})
	return id, err
}

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		_, err := fmt.Fprintf(out, "mail for order %d\n", task.Payload.OrderID)
		return err
	})
	return reg
}

func run(ctx context.Context, url string, out io.Writer) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 12 + 8 // the relay's, Workers + 2, and the app's
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	db := outboxpgx.OpenDB(pool)
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx,
		`CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			email text NOT NULL)`); err != nil {
		return err
	}
	id, err := placeOrder(ctx, pool, "ada@example.com")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "order %d is placed\n", id)
	r, err := relay.New(db, registry(out), relay.Config{})
	if err != nil {
		return err
	}
	return r.RunOnce(ctx) // a server calls r.Start and r.Stop: see examples/nethttp
}

func main() { devdb.Main(run) }
