package outboxwatermill_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxwatermill "github.com/txoutbox/outbox/publish/watermill"
	"github.com/txoutbox/outbox/relay"
)

type order struct {
	N int `json:"n"`
}

var placed = outbox.NewTaskType[order]("order.placed")

// Tasks arrive at a subscriber of Watermill as messages, those of a key in their order.
func TestTasksArriveAsMessages(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil)
	defer channel.Close()
	messages, err := channel.Subscribe(t.Context(), "shop.order.placed")
	if err != nil {
		t.Fatal(err)
	}
	p := outboxwatermill.New(channel, outboxwatermill.Config{KeyName: "key"})
	defer p.Close()
	f := forward.Register(reg, placed, p, forward.Source("/shop"), forward.To("shop.{type}"))
	const n, keys = 60, 4
	var tasks []outbox.NewTask
	for i := range n {
		tasks = append(tasks, placed.New(order{i}, outbox.OrderedBy(fmt.Sprint("k", i%keys)),
			outbox.Headers(map[string]string{"traceparent": "00-1", "content_type": "forged"})))
	}
	relaytest.EnqueueAll(db.DB, tasks...)
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 3})
	got := map[int]*message.Message{}
	for deadline := time.After(2 * time.Minute); len(got) < n; {
		select {
		case m := <-messages:
			var o order
			if err := json.Unmarshal(m.Payload, &o); err != nil {
				t.Fatal(err)
			}
			if o.N >= keys && got[o.N-keys] == nil {
				t.Errorf("%d comes before %d, of one key", o.N, o.N-keys)
			}
			got[o.N] = m
			m.Ack()
		case <-deadline:
			t.Fatalf("%d of %d messages", len(got), n)
		}
	}
	db.Emptied(t, time.Minute)
	m := got[5]
	id := m.Metadata.Get("ce_id")
	want := message.Metadata{"ce_specversion": "1.0", "ce_id": id, "ce_source": "/shop", "ce_type": "order.placed",
		"ce_time":         m.Metadata.Get("ce_time"),
		"ce_partitionkey": "k1", "traceparent": "00-1", "content_type": "application/json", "key": "k1"}
	if !maps.Equal(m.Metadata, want) || id == "" || m.UUID != id || string(m.Payload) != `{"n": 5}` {
		t.Errorf("the message is %s %s %v\nwant %v", m.UUID, m.Payload, m.Metadata, want)
	}
	if s := f.Stats(); s.Published != n {
		t.Errorf("%+v", s)
	}
}

// A publisher that fails is retried, as an attempt; what is refused for good is a dead letter.
func TestErrorsOfAPublisherAreRetriedOrDeadLetters(t *testing.T) {
	t.Parallel()
	db, reg := relaytest.NewDatabase(t), handlers.New()
	calls := 0
	ps := &pubsub{answer: func(topic string, _ []*message.Message) error {
		if calls++; topic == "refused" || calls < 3 {
			return fmt.Errorf("call %d", calls)
		}
		return nil
	}}
	p := outboxwatermill.New(ps, outboxwatermill.Config{Classify: func(err error) error {
		if calls < 3 {
			return err
		}
		return forward.Permanent(err)
	}})
	defer p.Close()
	f := forward.Register(reg, placed, p, forward.Route(func(e *forward.Event) (string, error) {
		if string(e.Data) == `{"n": 2}` {
			return "refused", nil
		}
		return "orders", nil
	}), forward.Handler(handlers.Backoff(relaytest.Constant(time.Millisecond))))
	relaytest.EnqueueAll(db.DB, placed.New(order{1}), placed.New(order{2}))
	relaytest.Run(t, db.DB, reg, relay.Config{Workers: 1})
	db.Emptied(t, time.Minute)
	if s := f.Stats(); s.Published != 1 || s.Permanent != 1 || s.Temporary == 0 || s.Unavailable != 0 {
		t.Errorf("%+v", s)
	}
}
