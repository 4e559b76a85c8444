package outboxkafka_test

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	outboxkafka "github.com/txoutbox/outbox/publish/kafka"
)

func TestABadURLIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "kafka://", "localhost", "localhost:9092,", ":9092"} {
		if p, err := outboxkafka.Connect(url, outboxkafka.Config{}); err == nil {
			p.Close()
			t.Errorf("%q connects", url)
		}
	}
}

func Example() {
	type Order struct {
		ID int64 `json:"id"`
	}
	orderPlaced := outbox.NewTaskType[Order]("order.placed")

	publisher, err := outboxkafka.Connect("localhost:9092",
		outboxkafka.Config{Options: []kgo.Opt{kgo.ClientID("shop")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	reg := handlers.New()
	forward.Register(reg, orderPlaced, publisher, forward.To("orders"))
	// relay.New(db, reg, …) and Run
}
