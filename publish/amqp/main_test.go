package outboxamqp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// A relay process gets a URL, a space and an exchange.
func TestMain(m *testing.M) {
	forwardtest.Main(m, func(place string) (forward.Publisher, error) {
		url, exchange, _ := strings.Cut(place, " ")
		return outboxamqp.Open(url, outboxamqp.Config{Exchange: exchange})
	}, func() {
		if started != nil {
			started.close()
		}
	})
}

func connect(t testing.TB, url string, c outboxamqp.Config) *outboxamqp.Publisher {
	t.Helper()
	p, err := outboxamqp.Open(url, c)
	forwardtest.Must(t, err)
	t.Cleanup(func() { forwardtest.Must(t, p.Close()) })
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

// place is an exchange and a queue on the broker, both with the test's name.
type place struct {
	t    testing.TB
	ch   *amqp.Channel
	name string
}

// declare makes both. The queue has the arguments.
func (p *place) declare(args amqp.Table) {
	p.t.Helper()
	_, err := p.ch.QueueDeclare(p.name, true, false, false, false, args)
	forwardtest.Must(p.t, err)
	forwardtest.Must(p.t, p.ch.ExchangeDeclare(p.name, amqp.ExchangeDirect, true, false, false, false, nil))
	forwardtest.Must(p.t, p.ch.QueueBind(p.name, "orders.eu", p.name, false, nil))
}

func (p *place) delete() {
	p.t.Helper()
	_, err := p.ch.QueueDelete(p.name, false, false, false)
	forwardtest.Must(p.t, err)
	forwardtest.Must(p.t, p.ch.ExchangeDelete(p.name, false, false))
}

func (p *place) received(t testing.TB, least int) (all []forwardtest.Received) {
	t.Helper()
	relaytest.Eventually(t, time.Minute, "the events", func() bool {
		for _, d := range content(t, p.ch, p.name) {
			got := forwardtest.Received{ID: d.MessageId, ContentType: d.ContentType, Data: d.Body,
				Headers: map[string]string{}}
			for name, value := range d.Headers {
				got.Headers[name], _ = value.(string)
			}
			got.Key = got.Headers["cloudEvents_partitionkey"]
			if d.DeliveryMode != amqp.Persistent || d.Type != got.Headers["cloudEvents_type"] || d.Timestamp.IsZero() {
				t.Errorf("the message is %+v", d)
			}
			all = append(all, got)
		}
		return len(all) >= least
	})
	return all
}

func TestAsAllPublishers(t *testing.T) {
	t.Parallel()
	r := broker(t)
	suite := forwardtest.Suite{
		New: func(t testing.TB) *forwardtest.Broker {
			at, proxy := &place{t, channel(t, r), t.Name()}, forwardtest.NewProxy(t, r.address())
			at.declare(nil)
			t.Cleanup(at.delete)
			url := strings.Replace(r.url(), r.address(), proxy.Address, 1)
			return &forwardtest.Broker{
				URL: url + " " + at.name, Of: at, To: "orders.eu", Received: at.received,
				Open: func(t testing.TB) forwardtest.Publisher {
					return connect(t, url, outboxamqp.Config{Exchange: at.name, Channels: 1})
				},
				Stop: proxy.Stop, Start: proxy.Start, Hold: proxy.Hold, Release: proxy.Release,
				LoseReplies: proxy.LoseReplies,
			}
		},
		Prefix: "cloudEvents_", Leaves: leaves,
		Refused: refused, Kills: true,
		Unready: map[string]func(*forward.Event){
			"unroutable":         func(e *forward.Event) { e.To = "nowhere" },
			"unroutable as well": func(e *forward.Event) { e.To = "nowhere" },
		},
		Mended: map[string]forwardtest.Mended{
			"no exchange": {Says: "no exchange", Break: func(_ testing.TB, of any) func() {
				of.(*place).delete()
				return func() { of.(*place).declare(nil) }
			}},
			"no queue": {Says: "unroutable", Break: func(t testing.TB, of any) func() {
				at := of.(*place)
				forwardtest.Must(t, at.ch.QueueUnbind(at.name, "orders.eu", at.name, nil))
				return func() { at.declare(nil) }
			}},
			"a full queue": {Says: "is full or failed", Break: func(_ testing.TB, of any) func() {
				at := of.(*place)
				at.delete()
				at.declare(amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
				return func() {
					at.delete()
					at.declare(nil)
				}
			}},
		},
	}
	suite.Run(t)
}
