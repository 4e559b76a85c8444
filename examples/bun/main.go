// Bun adds the outbox to an app on bun: tasks are enqueued on bun's transaction, and handlers use
// bun on the relay's.
//
//	go run ./examples/bun
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
)

type order struct {
	bun.BaseModel `bun:"table:shop_order"`

	ID    int64  `bun:"order_id,pk,autoincrement"`
	Email string `bun:"email,notnull"`
	Cents int64  `bun:"cents,notnull"`
}

type turnover struct {
	bun.BaseModel `bun:"table:shop_turnover"`

	OrderID int64 `bun:"order_id,notnull"`
	Cents   int64 `bun:"cents,notnull"`
}

type receipt struct{ OrderID int64 }

var (
	sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")
	addTurnover = outbox.NewTaskType[receipt]("ADD_TURNOVER")
)

func placeOrder(ctx context.Context, db *bun.DB, o order) (int64, error) {
	err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewInsert().Model(&o).Exec(ctx); err != nil {
			return err
		}
		// tx.Tx is the *sql.Tx. tx itself would read the statement's parameters as its own kind.
		if _, err := sendReceipt.Enqueue(ctx, tx.Tx, receipt{o.ID}); err != nil {
			return err
		}
		_, err := addTurnover.Enqueue(ctx, tx.Tx, receipt{o.ID})
		return err
	})
	outbox.Wake() // a relay in this process need not wait for its poll
	return o.ID, err
}

func registry(db *bun.DB, out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		var o order
		if err := db.NewSelect().Model(&o).Where("order_id = ?", task.Payload.OrderID).Scan(ctx); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "mail to %s: your order %d over %d cents\n", o.Email, o.ID, o.Cents)
		return err
	})
	handlers.Tx(reg, addTurnover, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[receipt]) error {
		var o order // Conn(tx) makes a query a part of the relay's transaction
		if err := db.NewSelect().Conn(tx).Model(&o).Where("order_id = ?", task.Payload.OrderID).Scan(ctx); err != nil {
			return err
		}
		_, err := db.NewInsert().Conn(tx).Model(&turnover{OrderID: o.ID, Cents: o.Cents}).Exec(ctx)
		return err
	})
	return reg
}

const tables = `
CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL,
cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS shop_turnover (order_id bigint NOT NULL, cents bigint NOT NULL);`

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := devdb.Open(ctx, url, tables) // relays are not tested with bun's own driver, pgdriver
	if err != nil {
		return err
	}
	defer pool.Close()
	db := bun.NewDB(pool, pgdialect.New())
	id, err := placeOrder(ctx, db, order{Email: "ada@example.com", Cents: 1999})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "order %d is placed\n", id)
	r, err := relay.New(pool, registry(db, out), relay.Config{})
	if err != nil {
		return err
	}
	return r.RunOnce(ctx) // a server calls r.Start and r.Stop: see examples/nethttp
}

func main() { devdb.Main(run) }
