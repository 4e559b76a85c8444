package main

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
	"github.com/txoutbox/outbox/relay"
)

// Order is the event of a new order.
type Order struct {
	ID       int64  `json:"id"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

var orderPlaced = outbox.NewTaskType[Order]("order.placed")

const ordersTables = `
CREATE TABLE IF NOT EXISTS customer_order (
  order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer text   NOT NULL,
  cents    int    NOT NULL
)`

// placeOrder stores an order and its event. The events of a customer keep their order.
func placeOrder(ctx context.Context, db *sql.DB, customer string, cents int) (id int64, err error) {
	err = outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		const insert = `INSERT INTO customer_order (customer, cents) VALUES ($1, $2) RETURNING order_id`
		if err := tx.QueryRowContext(ctx, insert, customer, cents).Scan(&id); err != nil {
			return err
		}
		_, err := orderPlaced.Enqueue(ctx, tx, Order{id, customer, cents}, outbox.OrderedBy(customer))
		return err
	})
	return id, err
}

// publish publishes the events of orders until ctx ends.
func publish(ctx context.Context, db *sql.DB, url, broker string) error {
	publisher, err := outboxnats.Open(broker, outboxnats.Config{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders.placed"))
	r, err := relay.New(db, reg, relay.Config{ListenDSN: url})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
