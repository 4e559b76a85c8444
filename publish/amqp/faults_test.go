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

// docs/faults.md says of each answer of the broker whose fault it is.
func TestTheMapOfRabbitMQ(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	full, err := ch.QueueDeclare(q+"-full", true, false, false, false,
		amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	publish := func(exchange, to string, change func(*forward.Event)) error {
		p := connect(t, r.url(), outboxamqp.Config{Exchange: exchange})
		e := events(1, to)[0]
		change(e)
		return errors.Join(p.Publish(within(t, time.Minute), []*forward.Event{e})...)
	}
	same := func(*forward.Event) {}
	long := strings.Repeat("x", 256)
	down := connect(t, "amqp://guest:guest@127.0.0.1:1/", outboxamqp.Config{})
	closed := connect(t, r.url(), outboxamqp.Config{})
	closed.Close()
	over, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	faultmap.Check(t, "RabbitMQ", forwardtest.Fault, map[string]func() error{
		"a message over max_message_size": func() error {
			return publish("", q,
				func(e *forward.Event) { e.Data = make([]byte, mostBytes+1) })
		},
		"a header CC or BCC": func() error {
			return publish("", q, func(e *forward.Event) { e.Headers = map[string]string{"CC": "x"} })
		},
		"a routing key": func() error { return publish("", long, same) },
		"type":          func() error { return publish("", q, func(e *forward.Event) { e.Type = long }) },
		"id":            func() error { return publish("", q, func(e *forward.Event) { e.ID = long }) },
		"or name of a header of over 255 bytes": func() error {
			return publish("", q, func(e *forward.Event) { e.Headers = map[string]string{long: ""} })
		},
		"headers that do not fit into a frame": func() error {
			return publish("", q, func(e *forward.Event) {
				e.Headers = map[string]string{"x": strings.Repeat("x",
					200_000)}
			})
		},
		"basic.nack of a full queue":      func() error { return publish("", full.Name, same) },
		"basic.return: no queue takes it": func() error { return publish("", "nowhere", same) },
		"404 no exchange":                 func() error { return publish("missing", q, same) },
		"403 no right to write":           func() error { return publish("forbidden", q, same) },
		"no connection": func() error {
			return down.Publish(within(t, time.Minute),
				events(1, q))[0]
		},
		"a closed Publisher": func() error {
			return closed.Publish(within(t, time.Minute),
				events(1, q))[0]
		},
		"no confirm in time": func() error {
			return connect(t, r.url(), outboxamqp.Config{}).Publish(over,
				events(1, q))[0]
		},
		"any other code": func() error { return outboxamqp.Refused(closed, 599) },
	}, func(name string) []error {
		code, err := strconv.Atoi(strings.TrimSuffix(name, " of the connection"))
		switch {
		case name == "a refused login", name == "connection.blocked": // have tests of their own
			return []error{down.Publish(within(t, time.Minute), events(1, q))[0]}
		case err != nil, strings.HasSuffix(name, " of the connection") != outboxamqp.EndsConnection(code):
			return nil
		}
		return []error{outboxamqp.Refused(closed, code)}
	})
}

// A missing exchange, or a right that is missing for a routing key, is asked for once.
func TestAnAnswerForManyIsAskedForOnce(t *testing.T) {
	t.Parallel()
	r := broker(t)
	for _, exchange := range []string{"missing", "forbidden"} {
		if exchange == "forbidden" {
			if err := channel(t, r).ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false,
				nil); err != nil {
				t.Fatal(err)
			}
		}
		p := connect(t, r.url(), outboxamqp.Config{Exchange: exchange})
		errs := p.Publish(within(t, time.Minute), events(500, "q"))
		if len(errs) != 500 {
			t.Fatalf("%s: %d errors", exchange, len(errs))
		}
		for i, err := range errs {
			if forwardtest.Fault(err) != "the target's" {
				t.Fatalf("%s: event %d: %v", exchange, i, err)
			}
		}
	}
}

// The broker closes the connection over one event. It counts an attempt, and its neighbours arrive.
func TestAnEventThatEndsTheConnectionIsAtFaultAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
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
	q := queue(t, channel(t, r), nil)
	login := &changingLogin{}
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: &amqp.Config{SASL: []amqp.Authentication{login}}})
	for range 3 {
		errs := p.Publish(within(t, time.Minute), events(1, q))
		if forwardtest.Fault(errors.Join(errs...)) != "the broker's" || !strings.Contains(errs[0].Error(), "403") {
			t.Errorf("%v", errs)
		}
	}
	login.right.Store(true)
	relaytest.Eventually(t, time.Minute, "a login",
		func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
}
