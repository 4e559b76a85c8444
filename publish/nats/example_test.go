package outboxnats_test

import (
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxnats "github.com/txoutbox/outbox/publish/nats"
)

func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")

	publisher, err := outboxnats.Open("nats://localhost:4222",
		outboxnats.Config{Options: []nats.Option{nats.Name("shop")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders.placed"))
	// relay.New(db, reg, …) and Run
}
