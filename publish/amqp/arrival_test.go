package outboxamqp_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

func TestAnEventArrivesWithItsPropertiesAndHeaders(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	if err := ch.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(q, "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	p := connect(t, r.url(), outboxamqp.Config{Exchange: "shop"})
	if err := p.Ready(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	e := &forward.Event{ID: "7", Source: "/shop", Type: "order.placed", Subject: "order/9", Key: "c1", Time: at,
		Headers: map[string]string{"traceparent": "00-1", "cloudevents_id": "forged"}, Data: []byte(`{"n": 1}`), To: "orders.eu", Attempt: 1}
	if errs := p.Publish(within(t, time.Minute), []*forward.Event{e}); errs != nil {
		t.Fatal(errs)
	}
	got := content(t, ch, q)
	if len(got) != 1 {
		t.Fatalf("%d messages", len(got))
	}
	d := got[0]
	if d.MessageId != "7" || d.Type != "order.placed" || !d.Timestamp.Equal(at) || d.ContentType != "application/json" ||
		d.DeliveryMode != amqp.Persistent || d.RoutingKey != "orders.eu" || d.Exchange != "shop" || string(d.Body) != `{"n": 1}` {
		t.Errorf("the message is %+v", d)
	}
	want := amqp.Table{"cloudEvents_specversion": "1.0", "cloudEvents_id": "7", "cloudEvents_source": "/shop", "cloudEvents_type": "order.placed",
		"cloudEvents_time": "2026-05-04T03:02:01Z", "cloudEvents_subject": "order/9", "cloudEvents_partitionkey": "c1", "traceparent": "00-1"}
	if fmt.Sprint(d.Headers) != fmt.Sprint(want) {
		t.Errorf("headers %v\nwant %v", d.Headers, want)
	}
}

// More events than may be in flight, of a few keys, from several goroutines at once.
func TestManyEventsArriveOnceAndInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	p := connect(t, r.url(), outboxamqp.Config{Channels: 2})
	done := make(chan []error)
	for part := range 3 {
		all := events(600, q)
		for i, e := range all {
			e.ID = fmt.Sprint(part, "-", i)
			if part == 0 {
				e.Key = fmt.Sprint("k", i%200)
			}
		}
		go func() { done <- p.Publish(within(t, time.Minute), all) }()
	}
	for range 3 {
		if errs := <-done; errs != nil {
			t.Error(errs)
		}
	}
	got, next := content(t, ch, q), map[int]int{}
	for _, d := range got {
		var part, i int
		if _, err := fmt.Sscanf(d.MessageId, "%d-%d", &part, &i); err != nil {
			t.Fatal(d.MessageId, err)
		}
		if part == 0 {
			k := i % 200
			if i/200 != next[k] {
				t.Errorf("%s comes when %d of its key are there", d.MessageId, next[k])
			}
			next[k]++
		}
	}
	if len(got) != 1800 {
		t.Errorf("%d messages, want 1800", len(got))
	}
}
