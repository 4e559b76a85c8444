package outboxamqp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// A relay process gets a URL, a space and an exchange.
func TestMain(m *testing.M) {
	forwardtest.Main(m, func(place string) (forward.Publisher, error) {
		url, exchange, _ := strings.Cut(place, " ")
		return outboxamqp.Connect(url, outboxamqp.Config{Exchange: exchange})
	}, func() {
		if started != nil {
			started.close()
		}
	})
}

func connect(t testing.TB, url string, c outboxamqp.Config) *outboxamqp.Publisher {
	t.Helper()
	p, err := outboxamqp.Connect(url, c)
	forwardtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// channel is one of a connection of the test's own.
func channel(t testing.TB, r *rabbit) *amqp.Channel {
	t.Helper()
	c, err := amqp.Dial(r.url())
	forwardtest.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	ch, err := c.Channel()
	forwardtest.Must(t, err)
	return ch
}

// queue declares a durable queue with the test's name.
func queue(t testing.TB, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare(strings.ToLower(t.Name()), true, false, false, false, nil)
	forwardtest.Must(t, err)
	_, err = ch.QueuePurge(q.Name, false) // of what -count left
	forwardtest.Must(t, err)
	return q.Name
}

// fullQueue declares a queue that refuses all messages.
func fullQueue(t testing.TB, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare(strings.ToLower(t.Name())+"-full", true, false, false, false,
		amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	forwardtest.Must(t, err)
	return q.Name
}

// content takes all messages from a queue.
func content(t testing.TB, ch *amqp.Channel, queue string) (all []amqp.Delivery) {
	t.Helper()
	for {
		d, ok, err := ch.Get(queue, true)
		forwardtest.Must(t, err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// events are n events to a routing key, with the ids 0 and on and without ordering keys.
func events(n int, to string) (all []*forward.Event) {
	for i := range n {
		all = append(all, &forward.Event{ID: fmt.Sprint(i), Source: "/shop", Type: "order.placed", Time: time.Now(),
			To: to, Data: fmt.Appendf(nil, `{"n": %d}`, i), Attempt: 1})
	}
	return all
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// leaves are functions of the goroutines that the first call of Publish starts.
var leaves = []string{"publish/amqp.(*conn).watch", "amqp091-go.(*Connection)"}
