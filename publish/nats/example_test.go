package outboxnats_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
)

// Orders that the app enqueues as tasks go to the subject orders.placed.
func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")

	publisher, err := outboxnats.Open("nats://localhost:4222",
		outboxnats.Config{Options: []nats.Option{nats.Name("shop")}})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders.placed"))
	// relay.New(db, reg, …) and Run
}

// A wrong URL is an error; a server that is down is none.
func ExampleOpen() {
	publisher, err := outboxnats.Open("nats://localhost:4222,nats://localhost:4223", outboxnats.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
}

// The app has a connection already, which Close leaves open.
func ExampleNew() {
	nc, err := nats.Connect("nats://localhost:4222", nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := outboxnats.New(js, outboxnats.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
}

// A gauge of an app: how often a stream had an event already.
func ExamplePublisher_Duplicates() {
	publisher, err := outboxnats.Open("nats://127.0.0.1:1", outboxnats.Config{}) // nobody is there
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	fmt.Println(publisher.Duplicates())
	// Output: 0
}

// A deploy waits until the broker can be used.
func ExamplePublisher_Ready() {
	publisher, err := outboxnats.Open("nats://localhost:4222", outboxnats.Config{})
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
	publisher, err := outboxnats.Open("nats://127.0.0.1:1", outboxnats.Config{}) // nobody is there
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}
