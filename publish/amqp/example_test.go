package outboxamqp_test

import (
	"context"
	"database/sql"
	"log"
	"os"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
	"github.com/txoutbox/outbox/relay"
)

// Order is the payload of order.placed.
type Order struct {
	ID int `json:"id"`
}

// Orders that the app enqueues as tasks go to the exchange shop, with the routing key order.placed.
func Example() {
	orderPlaced := outbox.NewTaskType[Order]("order.placed")
	publisher, err := outboxamqp.Open(os.Getenv("AMQP_URL"), outboxamqp.Config{Exchange: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close() // after the relay
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher)
	var db *sql.DB // the app's
	r, err := relay.New(db, reg, relay.Config{})
	if err != nil {
		log.Fatal(err)
	}
	log.Print(r.Run(context.Background()))
}
