package outboxamqp_test

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

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
				Connect: func(t testing.TB) forwardtest.Publisher {
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
