package outboxamqp_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/forwardtest"
	"github.com/txoutbox/outbox/internal/relaytest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// What RabbitMQ or AMQP refuses for good is permanent, what no queue takes yet is retried, and their
// neighbours arrive.
func TestARefusedEventLeavesItsNeighboursAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	p := connect(t, r.url(), outboxamqp.Config{})
	all := events(300, q)
	bad := map[int]string{3: "unroutable", 7: "larger than configured max size", 11: "unroutable", 20: "routing key has 256 bytes", 21: "name of a header has 256 bytes",
		22: "more than a frame", 23: "type has 256 bytes", 24: "id has", 40: "larger than configured max size", 299: "unroutable"}
	all[3].To, all[11].To, all[299].To = "nowhere", "nowhere", "nowhere"
	all[7].Data, all[40].Data = make([]byte, mostBytes+1), make([]byte, mostBytes+1)
	all[20].To, all[23].Type, all[24].ID = strings.Repeat("x", 256), strings.Repeat("x", 256), strings.Repeat("x", 256)
	all[21].Headers = map[string]string{strings.Repeat("x", 256): ""}
	all[22].Headers = map[string]string{"x": strings.Repeat("x", 200_000)}
	errs := p.Publish(within(t, time.Minute), all)
	if len(errs) != len(all) {
		t.Fatalf("%d errors", len(errs))
	}
	for i, err := range errs {
		switch want := bad[i]; {
		case want == "" && err != nil:
			t.Errorf("event %d: %v", i, err)
		case want == "unroutable" && forwardtest.Fault(err) != "the target's", want != "" && want != "unroutable" && !forward.IsPermanent(err),
			want != "" && !strings.Contains(err.Error(), want):
			t.Errorf("event %d: %v, want %q", i, err, want)
		}
	}
	arrived := map[string]bool{}
	for _, d := range content(t, ch, q) {
		arrived[d.MessageId] = true
	}
	for i := range all {
		if id := fmt.Sprint(i); arrived[id] != (bad[i] == "") {
			t.Errorf("event %d arrived: %v", i, arrived[id])
		}
	}
}

// What has no way yet is no dead letter: it arrives when it has one.
func TestWhatHasNoWayYetIsRetried(t *testing.T) {
	t.Parallel()
	r := broker(t)
	for name, c := range map[string]struct {
		exchange, says string
		mend           func(t *testing.T, ch *amqp.Channel, queue string) error
	}{
		"no queue": {"amq.direct", "unroutable", func(t *testing.T, ch *amqp.Channel, queue string) error {
			return ch.QueueBind(queue, placed.Name(), "amq.direct", false, nil)
		}},
		"no exchange": {"missing-yet", "no exchange 'missing-yet'", func(t *testing.T, ch *amqp.Channel, queue string) error {
			return errors.Join(ch.ExchangeDeclare("missing-yet", amqp.ExchangeFanout, false, true, false, false, nil),
				ch.QueueBind(queue, "", "missing-yet", false, nil))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ch := channel(t, r)
			q, err := ch.QueueDeclare("", false, true, true, false, nil) // gone with the test
			if err != nil {
				t.Fatal(err)
			}
			db, reg := relaytest.NewDatabase(t), handlers.New()
			f := forward.Register(reg, placed, connect(t, r.url(), outboxamqp.Config{Exchange: c.exchange}), forward.Handler(handlers.Keep(time.Hour)))
			enqueue(t, db, 1, 5, 0)
			run(t, db, reg, 0)
			relaytest.Eventually(t, time.Minute, "a refusal", func() bool { return f.Stats().Temporary > 0 })
			if err := f.Health(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Health: %v", err)
			}
			if err := c.mend(t, ch, q.Name); err != nil {
				t.Fatal(err)
			}
			db.Emptied(t, 2*time.Minute)
			if got := db.Text(t, `SELECT concat((SELECT count(*) FROM outbox.done_task), ' ', (SELECT count(*) FROM outbox.dead_task))`); got != "5 0" {
				t.Errorf("done and dead: %s, want 5 0\n%s", got, db.Dump(t))
			}
			ids := map[string]bool{}
			for _, d := range content(t, ch, q.Name) {
				ids[d.MessageId] = true
			}
			if len(ids) != 5 {
				t.Errorf("%d of 5 events arrived", len(ids))
			}
		})
	}
}

// A missing exchange, or a right that is missing for a routing key, is asked for once.
func TestAnAnswerForManyIsAskedForOnce(t *testing.T) {
	t.Parallel()
	r := broker(t)
	for _, exchange := range []string{"missing", "forbidden"} {
		if exchange == "forbidden" {
			if err := channel(t, r).ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
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

// An event that is to be retried holds up its key, so that the order is kept. One that is refused for
// good does not.
func TestAFailedEventHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	full, err := ch.QueueDeclare(q+"-full", true, false, false, false, amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	if err != nil {
		t.Fatal(err)
	}
	p := connect(t, r.url(), outboxamqp.Config{})
	all := events(6, q)
	all[0].To, all[3].Data = full.Name, make([]byte, mostBytes+1)
	for i, key := range []string{"held", "other", "held", "refused", "refused", "held"} {
		all[i].Key = key
	}
	errs := p.Publish(within(t, time.Minute), all)
	if len(errs) != 6 {
		t.Fatalf("%d errors", len(errs))
	}
	for i, want := range map[int]string{0: "the target's", 2: "the broker's", 5: "the broker's"} { // no attempt counts of what is not sent
		if kind := forwardtest.Fault(errs[i]); kind != want {
			t.Errorf("event %d: %s, want %s: %v", i, kind, want, errs[i])
		}
	}
	if !forward.IsPermanent(errs[3]) || errs[1] != nil || errs[4] != nil {
		t.Error(errs)
	}
	var ids []string
	for _, d := range content(t, ch, q) {
		ids = append(ids, d.MessageId)
	}
	if got := strings.Join(ids, " "); got != "1 4" {
		t.Errorf("arrived: %s", got)
	}
}
