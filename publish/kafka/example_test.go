package outboxkafka_test

import (
	"fmt"
	"log"
	"net/http"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
)

// Orders that the app enqueues as tasks go to the topic orders.
func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")

	publisher, err := outboxkafka.Open("localhost:9092",
		outboxkafka.Config{Options: []kgo.Opt{kgo.ClientID("shop")}})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders"))
	// relay.New(db, reg, …) and Run
}

// A wrong address is an error; a broker that is down is none.
func ExampleOpen() {
	publisher, err := outboxkafka.Open("kafka1:9092,kafka2:9092", outboxkafka.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	_, err = outboxkafka.Open("kafka1", outboxkafka.Config{})
	fmt.Println(err != nil)
	// Output: true
}

// The app has a client already, which Close leaves open.
func ExampleNew() {
	client, err := kgo.NewClient(kgo.SeedBrokers("localhost:9092"), kgo.RecordRetries(12))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	publisher, err := outboxkafka.New(client, outboxkafka.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}

// A deploy waits until the broker can be used.
func ExamplePublisher_Ready() {
	publisher, err := outboxkafka.Open("kafka1:9092", outboxkafka.Config{})
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
	publisher, err := outboxkafka.Open("kafka1:9092", outboxkafka.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}
