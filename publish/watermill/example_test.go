package outboxwatermill_test

import (
	"context"
	"database/sql"
	"fmt"

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
