package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/inbox"
)

// No constraint keeps an order from a second invoice: the inbox does.
const billingTables = `
CREATE TABLE IF NOT EXISTS invoice (
  invoice_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id   bigint NOT NULL,
  customer   text   NOT NULL,
  cents      int    NOT NULL
)`

// bill writes the invoice of an order, once for each event.
func bill(ctx context.Context, db *sql.DB, source, id string, o Order) error {
	return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		first, err := inbox.Once(ctx, tx, source, id)
		if err != nil || !first {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO invoice (order_id, customer, cents) VALUES ($1, $2, $3)`, o.ID, o.Customer,
			o.Cents)
		return err
	})
}

// consume consumes events until ctx ends. An event that is not acknowledged comes again.
func consume(ctx context.Context, db *sql.DB, broker string) error {
	conn, err := nats.Connect(broker, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := billAll(ctx, js, db); err != nil {
			wait(ctx, 200*time.Millisecond) // the broker or the database is away
		}
	}
	return nil
}

// billAll handles the events of one durable consumer, one after the other, until one fails.
func billAll(ctx context.Context, js jetstream.JetStream, db *sql.DB) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, streamName, jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxAckPending: 256})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		messages, err := consumer.Fetch(100, jetstream.FetchMaxWait(500*time.Millisecond))
		if err != nil {
			return err
		}
		for m := range messages.Messages() {
			var o Order
			if err := json.Unmarshal(m.Data(), &o); err != nil {
				return fmt.Errorf("billing: an event that is no order: %w", err)
			}
			if err := bill(ctx, db, m.Headers().Get("ce-source"), m.Headers().Get("ce-id"), o); err != nil {
				return err
			}
			if err := m.Ack(); err != nil {
				return err
			}
		}
		if err := messages.Error(); err != nil {
			return err
		}
	}
	return nil
}
