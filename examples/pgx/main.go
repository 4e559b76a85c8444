// Pgx adds the outbox to an app on pgxpool. The relay is on pgx's database/sql driver, on which the
// app can be as well, with outbox.InTx.
//
//	go run ./examples/pgx
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type receipt struct{ OrderID int64 }

var sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")

// placeOrder inserts a task by hand, as pgxpool's transactions are no *sql.Tx: a task is a row.
// Encode checks what Enqueue would check. The options are columns: docs/guide/enqueueing.md.
func placeOrder(ctx context.Context, pool *pgxpool.Pool, email string) (id int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `INSERT INTO shop_order (email) VALUES ($1) RETURNING order_id`,
			email).Scan(&id); err != nil {
			return err
		}
		payload, err := sendReceipt.New(receipt{id}).Encode()
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox.task (task_type, payload) VALUES ($1, $2)`, sendReceipt.Name(), payload)
		return err
	})
	outbox.Wake() // a relay in this process need not wait for its poll
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
	// the relay's: with the app's pool it may be out of connections when its heartbeat needs one
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(12) // Workers + 2
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
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
