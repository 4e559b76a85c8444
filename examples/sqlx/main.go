// Sqlx adds the outbox to an app on sqlx: the order and the task to send its receipt commit
// together.
//
//	go run ./examples/sqlx
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type order struct {
	ID    int64  `db:"order_id"`
	Email string `db:"email"`
	Cents int64  `db:"cents"`
}

// receipt is the payload of SEND_RECEIPT: ids and little else, as the rows are at hand.
type receipt struct{ OrderID int64 }

var (
	sendReceipt = outbox.NewTaskType[receipt]("SEND_RECEIPT")
	addTurnover = outbox.NewTaskType[receipt]("ADD_TURNOVER")
)

// placeOrder is what the app had before, with two lines more: a task is enqueued on the transaction
// that writes the order.
func placeOrder(ctx context.Context, db *sqlx.DB, o order) (int64, error) {
	err := outbox.SqlxInTx(ctx, db, func(tx *sqlx.Tx) error {
		query, args, err := tx.BindNamed(`INSERT INTO shop_order (email, cents) VALUES (:email, :cents) RETURNING order_id`,
			o)
		if err != nil {
			return err
		}
		if err := tx.GetContext(ctx, &o.ID, query, args...); err != nil {
			return err
		}
		if _, err := sendReceipt.Enqueue(ctx, tx, receipt{o.ID}); err != nil {
			return err
		}
		_, err = addTurnover.Enqueue(ctx, tx, receipt{o.ID})
		return err
	})
	return o.ID, err
}

// registry says what is done for each type. Mail leaves the database, so it is Leased; the turnover
// is SQL only, so it is Tx.
func registry(db *sqlx.DB, out io.Writer) *handlers.Registry {
	reg := handlers.New()
	handlers.Leased(reg, sendReceipt, func(ctx context.Context, task *outbox.Task[receipt]) error {
		var o order
		if err := db.GetContext(ctx, &o, `SELECT order_id, email, cents FROM shop_order WHERE order_id = $1`,
			task.Payload.OrderID); err != nil {
			return err
		}
		// send task.Key() along, as idempotency key
		fmt.Fprintf(out, "mail to %s: your order %d over %d cents\n", o.Email, o.ID, o.Cents)
		return nil
	})
	handlers.Tx(reg, addTurnover,
		outbox.SqlxHandler(db, func(ctx context.Context, tx *sqlx.Tx, task *outbox.Task[receipt]) error {
			_, err := tx.NamedExecContext(ctx, `INSERT INTO shop_turnover (order_id, cents)
			SELECT order_id, cents FROM shop_order WHERE order_id = :orderid`, task.Payload)
			return err
		}))
	return reg
}

const tables = `
CREATE TABLE IF NOT EXISTS shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL,
cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS shop_turnover (order_id bigint NOT NULL, cents bigint NOT NULL);`

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := devdb.Open(ctx, url, tables) // or sqlx.Open("postgres", url): see docs/guide/production.md
	if err != nil {
		return err
	}
	defer pool.Close()
	db := sqlx.NewDb(pool, "postgres")
	r, err := relay.New(pool, registry(db, out), relay.Config{})
	if err != nil {
		return err
	}
	id, err := placeOrder(ctx, db, order{Email: "ada@example.com", Cents: 1999})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "order %d is placed\n", id)
	return r.RunOnce(ctx) // a server calls r.Start and r.Stop: see examples/nethttp
}

func main() { devdb.Main(run) }
