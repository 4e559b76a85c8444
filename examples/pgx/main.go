// Pgx adds the outbox to an app on pgx: with pgx's database/sql driver, and in transactions of
// pgxpool.
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
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

type receipt struct{ OrderID int64 }

var sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")

const insertOrder = `INSERT INTO shop_order (email) VALUES ($1) RETURNING order_id`

// placeOrder is for code on database/sql: a *sql.DB of sql.Open("pgx", url), or of
// stdlib.OpenDBFromPool as in run.
func placeOrder(ctx context.Context, db *sql.DB, email string) (id int64, err error) {
	err = outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, insertOrder, email).Scan(&id); err != nil {
			return err
		}
		_, err := sendReceipt.Enqueue(ctx, tx, receipt{id})
		return err
	})
	return id, err
}

// placeOrderInPool is for code on pgxpool, whose transactions are no *sql.Tx: a task is a row, so
// it can be inserted by hand. Encode checks what Enqueue would check. The options are columns:
// docs/guide/enqueueing.md.
func placeOrderInPool(ctx context.Context, pool *pgxpool.Pool, email string) (id int64, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, insertOrder, email).Scan(&id); err != nil {
			return err
		}
		payload, err := sendReceipt.New(receipt{id}).Encode()
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO outbox.task (task_type, payload) VALUES ($1, $2)`, sendReceipt.Name(), payload)
		return err
	})
	return id, err // a relay in this process need not wait for its poll if Relay.Wake is called here
}

func registry(out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		_, err := fmt.Fprintf(out, "mail for order %d\n", task.Payload.OrderID)
		return err
	}, handlers.MaxRunning(1))
	return reg
}

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := schema.Migrate(ctx, db); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL)`); err != nil {
		return err
	}
	first, err := placeOrder(ctx, db, "ada@example.com")
	if err != nil {
		return err
	}
	second, err := placeOrderInPool(ctx, pool, "eve@example.com")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "orders %d and %d are placed\n", first, second)

	// The relay has a pool of its own: one that it shares may be out of connections when its
	// heartbeat needs one.
	relayDB, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer relayDB.Close()
	relayDB.SetMaxOpenConns(12) // Workers + 2
	r, err := relay.New(relayDB, registry(out), relay.Config{})
	if err != nil {
		return err
	}
	return r.RunOnce(ctx) // a server has r.Run(ctx) in a goroutine: see examples/nethttp
}

func main() { devdb.Main(run) }
