package outboxwebhook_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxwebhook "github.com/txoutbox/outbox/publish/webhook"
)

// Each customer has an endpoint, which gets the customer's orders.
func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")
	secretsOf := func(context.Context, *forward.Event) ([]string, error) {
		return []string{os.Getenv("WEBHOOK_SECRET")}, nil
	}
	endpointOf := func(_ context.Context, e *forward.Event) (string, error) {
		return "https://hooks.example.com/" + e.OrderingKey, nil
	}

	publisher, err := outboxwebhook.New(outboxwebhook.Config{Secrets: secretsOf})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.Route(endpointOf))
	// relay.New(db, reg, …) and Run
}

// Requests are signed with the secret of their endpoint; the error names all that is wrong.
func ExampleNew() {
	_, err := outboxwebhook.New(outboxwebhook.Config{Secrets: func(_ context.Context, e *forward.Event) ([]string, error) {
		return []string{os.Getenv("WEBHOOK_SECRET")}, nil // an app asks its database for the secret of e.To
	}})
	fmt.Println(err)
	// Output: <nil>
}

// A customer has mended an endpoint that had answered 410.
func ExamplePublisher_Resume() {
	publisher, err := outboxwebhook.New(outboxwebhook.Config{Unsigned: true})
	if err != nil {
		log.Fatal(err)
	}
	defer publisher.Close()
	publisher.Resume("https://hooks.example.com/7")
}

// It is ready until it is closed.
func ExamplePublisher_Ready() {
	publisher, err := outboxwebhook.New(outboxwebhook.Config{Unsigned: true})
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
	publisher, err := outboxwebhook.New(outboxwebhook.Config{Unsigned: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}
