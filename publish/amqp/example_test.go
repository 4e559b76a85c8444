package outboxamqp_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
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

// A wrong URL is an error; a broker that is down is none.
func ExampleOpen() {
	publisher, err := outboxamqp.Open("amqp://guest:guest@localhost:5672/",
		outboxamqp.Config{Exchange: "shop", Channels: 8})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	_, err = outboxamqp.Open("localhost:5672", outboxamqp.Config{})
	fmt.Println(err != nil)
	// Output: true
}

// A deploy waits until the broker can be used.
func ExamplePublisher_Ready() {
	publisher, err := outboxamqp.Open("amqp://localhost/", outboxamqp.Config{Exchange: "shop"})
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := publisher.Ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

// Close comes after the relay's Run or Stop has returned.
func ExamplePublisher_Close() {
	publisher, err := outboxamqp.Open("amqp://localhost/", outboxamqp.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}
