package outboxamqp_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/faultmap"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// refused are changes of an event, by their names in docs/faults.md, which no retry makes good.
var refused = map[string]func(*forward.Event){
	"a message over max_message_size":       func(e *forward.Event) { e.Data = make([]byte, mostBytes+1) },
	"a header CC or BCC":                    func(e *forward.Event) { e.Headers = map[string]string{"CC": "x"} },
	"a routing key":                         func(e *forward.Event) { e.To = long },
	"type":                                  func(e *forward.Event) { e.Type = long },
	"id":                                    func(e *forward.Event) { e.ID = long },
	"or name of a header of over 255 bytes": func(e *forward.Event) { e.Headers = map[string]string{long: ""} },
	"headers that do not fit into a frame": func(e *forward.Event) {
		e.Headers = map[string]string{"x": strings.Repeat("x", 200_000)}
	},
}

var long = strings.Repeat("x", 256)

// docs/faults.md says of each answer of the broker whose fault it is.
func TestTheMapOfRabbitMQ(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	forwardtest.Must(t, ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil))
	by := func(ctx context.Context, p *outboxamqp.Publisher, to string) func() error {
		return func() error { return p.Publish(ctx, events(1, to))[0] }
	}
	ctx := within(t, time.Minute)
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	p := connect(t, r.url(), outboxamqp.Config{})
	down := connect(t, "amqp://guest:guest@127.0.0.1:1/", outboxamqp.Config{})
	closed := connect(t, r.url(), outboxamqp.Config{})
	closed.Close()
	made := map[string]func() error{
		"basic.nack of a full queue":      by(ctx, p, fullQueue(t, ch)),
		"basic.return: no queue takes it": by(ctx, p, "nowhere"),
		"404 no exchange":                 by(ctx, connect(t, r.url(), outboxamqp.Config{Exchange: "missing"}), q),
		"403 no right to write":           by(ctx, connect(t, r.url(), outboxamqp.Config{Exchange: "forbidden"}), q),
		"no connection":                   by(ctx, down, q),
		"a closed Publisher":              by(ctx, closed, q),
		"no confirm in time":              by(over, p, q),
		"any other code":                  func() error { return outboxamqp.Refused(closed, 599) },
	}
	for name, change := range refused {
		made[name] = func() error {
			e := events(1, q)[0]
			change(e)
			return p.Publish(ctx, []*forward.Event{e})[0]
		}
	}
	faultmap.Check(t, "RabbitMQ", forwardtest.Fault, made, func(name string) []error {
		code, err := strconv.Atoi(strings.TrimSuffix(name, " of the connection"))
		switch {
		case name == "a refused login", name == "connection.blocked": // have tests of their own
			return []error{down.Publish(ctx, events(1, q))[0]}
		case err != nil, strings.HasSuffix(name, " of the connection") != outboxamqp.EndsConnection(code):
			return nil
		}
		return []error{outboxamqp.Refused(closed, code)}
	})
}

// More events than may be in flight. A missing exchange, or a right that is missing for a routing
// key, is asked for once.
func TestManyEventsHaveAnAnswerEach(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	forwardtest.Must(t, ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil))
	for exchange, want := range map[string]string{"": "none", "missing": "the target's", "forbidden": "the target's"} {
		p := connect(t, r.url(), outboxamqp.Config{Exchange: exchange})
		errs := p.Publish(within(t, time.Minute), events(600, q))
		if want == "none" && errs == nil {
			errs = make([]error, 600)
		}
		if len(errs) != 600 {
			t.Fatalf("%s: %d errors", exchange, len(errs))
		}
		for i, err := range errs {
			if forwardtest.Fault(err) != want {
				t.Fatalf("%s: event %d: %v", exchange, i, err)
			}
		}
	}
	if got := content(t, ch, q); len(got) != 600 {
		t.Errorf("%d messages, want 600", len(got))
	}
}

// The broker closes the connection over one event. It counts an attempt, and its neighbours arrive.
func TestAnEventThatEndsTheConnectionIsAtFaultAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{Channels: 1,
		DialConfig: &amqp.Config{Dial: dialPoisoned(amqp.InternalError)}})
	all := events(20, q)
	all[5].Data = []byte(`"poison"`)
	errs := p.Publish(within(t, time.Minute), all)
	for i, err := range errs {
		want := "none"
		if i == 5 {
			want = "the event's"
		}
		if kind := forwardtest.Fault(err); kind != want {
			t.Errorf("event %d: %s, want %s: %v", i, kind, want, err)
		}
	}
	if len(errs) != len(all) {
		t.Errorf("%d errors", len(errs))
	}
	arrived := map[string]bool{}
	for _, d := range content(t, ch, q) {
		arrived[d.MessageId] = true
	}
	if len(arrived) != len(all)-1 {
		t.Errorf("%d events arrived", len(arrived))
	}
	for _, e := range all { // now it is no event's fault
		e.Data = []byte(`"poison"`)
	}
	kinds := map[string]int{}
	for _, err := range p.Publish(within(t, time.Minute), all) {
		kinds[forwardtest.Fault(err)]++
	}
	if kinds["the event's"] != 2 || kinds["the broker's"] != len(all)-2 {
		t.Errorf("of a connection that is always closed: %v", kinds)
	}
}

// changingLogin has the right password once it is told to.
type changingLogin struct{ right atomic.Bool }

func (*changingLogin) Mechanism() string { return "PLAIN" }

func (l *changingLogin) Response() string {
	if l.right.Load() {
		return "\x00guest\x00guest"
	}
	return "\x00guest\x00old"
}

// A password that was changed is asked for at each login.
func TestARefusedLoginIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := broker(t)
	q := queue(t, channel(t, r))
	login := &changingLogin{}
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: &amqp.Config{SASL: []amqp.Authentication{login}}})
	for range 3 {
		errs := p.Publish(within(t, time.Minute), events(1, q))
		if forwardtest.Fault(errors.Join(errs...)) != "the broker's" || !strings.Contains(errs[0].Error(), "403") ||
			strings.Contains(errs[0].Error(), "guest:guest") {
			t.Errorf("%v", errs)
		}
	}
	login.right.Store(true)
	relaytest.Eventually(t, time.Minute, "a login",
		func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
}
