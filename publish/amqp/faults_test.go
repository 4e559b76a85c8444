package outboxamqp_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
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
	full := fullQueue(t, ch)
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
	real := map[string]func() error{
		"a message over max_message_size": func() error { return publish("", q, func(e *forward.Event) { e.Data = make([]byte, mostBytes+1) }) },
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
			return publish("", q, func(e *forward.Event) { e.Headers = map[string]string{"x": strings.Repeat("x", 200_000)} })
		},
		"basic.nack of a full queue":      func() error { return publish("", full, same) },
		"basic.return: no queue takes it": func() error { return publish("", "nowhere", same) },
		"404 no exchange":                 func() error { return publish("missing", q, same) },
		"403 no right to write":           func() error { return publish("forbidden", q, same) },
		"no connection":                   func() error { return down.Publish(within(t, time.Minute), events(1, q))[0] },
		"a closed Publisher":              func() error { return closed.Publish(within(t, time.Minute), events(1, q))[0] },
		"no confirm in time":              func() error { return connect(t, r.url(), outboxamqp.Config{}).Publish(over, events(1, q))[0] },
	}
	elsewhere := map[string]bool{"a refused login": true, "connection.blocked": true} // have tests of their own
	any := 0
	for _, row := range faultmap.Table(t, "RabbitMQ") {
		for name := range strings.SplitSeq(row["error"], ", ") {
			var err error
			code, text := strconv.Atoi(strings.TrimSuffix(name, " of the connection"))
			switch {
			case real[name] != nil:
				err = real[name]()
				delete(real, name)
			case elsewhere[name]:
				continue
			case name == "any other code":
				err = outboxamqp.Refused(closed, 599)
				any++
			case text != nil:
				t.Errorf("what is %q?", name)
				continue
			case strings.HasSuffix(name, " of the connection") != outboxamqp.EndsConnection(code):
				t.Errorf("%s ends the connection: %v", name, outboxamqp.EndsConnection(code))
				continue
			default:
				err = outboxamqp.Refused(closed, code)
			}
			if kind := forwardtest.Fault(err); kind != row["whose fault"] {
				t.Errorf("%s: %s, want %s: %v", name, kind, row["whose fault"], err)
			}
		}
	}
	for name := range real {
		t.Errorf("the map does not have %q", name)
	}
	if any != 1 {
		t.Error("the map does not have any other code")
	}
}

// fullQueue is one that takes nothing.
func fullQueue(t *testing.T, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare(strings.ToLower(t.Name())+"-full", true, false, false, false, amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	return q.Name
}

// The broker closes the connection over one event. It counts an attempt, and its neighbours arrive.
func TestAnEventThatEndsTheConnectionIsAtFaultAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	p := connect(t, r.url(), outboxamqp.Config{Channels: 1, DialConfig: &amqp.Config{Dial: dialPoisoned(amqp.InternalError)}})
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

// One queue is full, and another one takes its events.
func TestAFullQueueIsAtFaultAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	full, err := ch.QueueDeclare(q+"-full", true, false, false, false, amqp.Table{"x-max-length": 2, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, placed, connect(t, r.url(), outboxamqp.Config{}), forward.BatchSize(1), forward.Route(func(e *forward.Event) (string, error) {
		var n int
		if _, err := fmt.Sscanf(string(e.Data), `{"n": %d}`, &n); err != nil || n <= 12 {
			return full.Name, err
		}
		return q, nil
	}), forward.Handler(handlers.Backoff(relaytest.Constant(time.Millisecond)), handlers.Keep(time.Hour)))
	enqueue(t, db, 1, 12, 0)
	run(t, db, reg, 0)
	relaytest.Eventually(t, time.Minute, "a refusal", func() bool { return f.Stats().Temporary > 0 })
	enqueue(t, db, 13, 24, 0)
	relaytest.Eventually(t, time.Minute, "the other queue to have its events", func() bool { return len(content(t, ch, q)) > 0 || f.Stats().Published >= 14 })
	if err := f.Health(); err == nil || !strings.Contains(err.Error(), full.Name) || strings.Contains(err.Error(), "the broker since") {
		t.Errorf("Health: %v", err)
	}
	if s := f.Stats(); s.Permanent > 0 {
		t.Errorf("%+v", s)
	}
	messages, err := ch.Consume(full.Name, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for deadline := time.After(2 * time.Minute); len(ids) < 12; {
		select {
		case d := <-messages:
			ids[d.MessageId] = true
		case <-deadline:
			t.Fatalf("%d of 12 events arrived", len(ids))
		}
	}
	db.Emptied(t, time.Minute)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt) > 1) FROM outbox.done_task`); got != "24 t" {
		t.Errorf("done, and attempts that count: %s, want 24 t", got)
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
	relaytest.Eventually(t, time.Minute, "a login", func() bool { return p.Publish(within(t, time.Minute), events(1, q)) == nil })
}
