package forward_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

type Order struct {
	ID int `json:"id"`
}

var OrderPlaced = outbox.NewTaskType[Order]("order.placed")

// printer is a Publisher that prints. The modules below publish are real ones.
type printer struct{}

func (printer) Publish(_ context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		if e.OrderingKey == "" {
			errs[i] = forward.Permanent(errors.New("the event has no key"))
			continue
		}
		fmt.Println(e.To, e.OrderingKey, string(e.Data))
	}
	return errs
}

// An event is enqueued in the transaction of the order, and published after its commit.
func ExampleRegister() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	ctx, reg := context.Background(), handlers.New()
	f := forward.Register(reg, OrderPlaced, printer{}, forward.To("shop.{type}"))

	relaytest.Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := OrderPlaced.Enqueue(ctx, tx, Order{ID: 7}, outbox.OrderedBy("customer 1"))
		if err == nil {
			_, err = OrderPlaced.Enqueue(ctx, tx, Order{ID: 8})
		}
		return err
	}))
	relaytest.RunDue(ctx, db, reg)
	fmt.Printf("%d published, %d dead\n", f.Stats().Published, f.Stats().Permanent)

	// Output:
	// shop.order.placed customer 1 {"id": 7}
	// 1 published, 1 dead
}

// Two targets get each event, each at its own pace.
func ExampleFanout() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	ctx, reg := context.Background(), handlers.New()
	forward.Fanout(reg, OrderPlaced, map[string]forward.Target{
		"billing": {Publisher: printer{}, Options: []forward.Option{forward.To("billing")}},
		"search":  {Publisher: printer{}, Options: []forward.Option{forward.To("search")}},
	})
	relaytest.EnqueueAll(db, OrderPlaced.New(Order{ID: 7}, outbox.OrderedBy("customer 1")))
	relaytest.RunDue(ctx, db, reg)

	// Unordered output:
	// billing customer 1 {"id": 7}
	// search customer 1 {"id": 7}
}
