package outboxwatermill_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
	"github.com/txoutbox/outbox/relay"
)

// Order is the payload of order.placed.
type Order struct {
	ID int `json:"id"`
}

// Orders that the app enqueues as tasks go to Watermill's topic orders. An app has a Pub/Sub of its
// broker's in place of the Go channel, and calls Run.
func Example() {
	ctx := context.Background()
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	channel := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1}, nil)
	messages, err := channel.Subscribe(ctx, "orders")
	relaytest.Must(err)

	orderPlaced := outbox.NewTaskType[Order]("order.placed")
	publisher, err := outboxwatermill.New(channel, outboxwatermill.Config{})
	relaytest.Must(err)
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders"))
	r, err := relay.New(db, reg, relay.Config{Workers: 1})
	relaytest.Must(err)

	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := orderPlaced.Enqueue(ctx, tx, Order{ID: 7}) // beside the app's own rows
		return err
	}))
	relaytest.Must(r.RunOnce(ctx))
	m := <-messages
	fmt.Println(m.Metadata.Get("ce_type"), string(m.Payload))
	m.Ack()
	publisher.Close()
	relaytest.Must(channel.Close())
	// Output: order.placed {"id": 7}
}

// Errors of a closed Pub/Sub are the broker's, and count no attempt.
func ExampleNew() {
	channel := gochannel.NewGoChannel(gochannel.Config{}, nil) // an app: the Pub/Sub of its broker
	publisher, err := outboxwatermill.New(channel, outboxwatermill.Config{Classify: func(err error) error {
		if strings.Contains(err.Error(), "closed") {
			return forward.Unavailable(err, 0)
		}
		return err
	}})
	if err != nil {
		log.Fatal(err)
	}
	relaytest.Must(channel.Close())
	errs := publisher.Publish(context.Background(), []*forward.Event{{ID: "1", To: "orders"}}) // as a relay does
	fmt.Println(forward.IsUnavailable(errs[0]))
	// Output: true
}

// A deploy waits until the broker can be used.
func ExamplePublisher_Ready() {
	publisher, err := outboxwatermill.New(gochannel.NewGoChannel(gochannel.Config{}, nil), outboxwatermill.Config{})
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
	publisher, err := outboxwatermill.New(gochannel.NewGoChannel(gochannel.Config{}, nil), outboxwatermill.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(publisher.Close())
	// Output: <nil>
}
