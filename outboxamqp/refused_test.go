package outboxamqp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/outboxamqp"
)

// What RabbitMQ or AMQP refuses for good is a dead letter, and its neighbours arrive.
func TestARefusedEventLeavesItsNeighboursAlone(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	p := connect(t, r.url(), outboxamqp.Config{})
	all := events(300, q)
	bad := map[int]string{3: "unroutable", 7: "larger than configured max size", 11: "unroutable", 20: "routing key has 256 bytes", 21: "name of a header has 256 bytes",
		22: "more than a frame", 23: "type has 256 bytes", 24: "source with the id has", 40: "larger than configured max size", 299: "unroutable"}
	all[3].To, all[11].To, all[299].To = "nowhere", "nowhere", "nowhere"
	all[7].Data, all[40].Data = make([]byte, mostBytes+1), make([]byte, mostBytes+1)
	all[20].To, all[23].Type, all[24].Source = strings.Repeat("x", 256), strings.Repeat("x", 256), strings.Repeat("x", 255)
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
		case want != "" && (!forward.IsPermanent(err) || !strings.Contains(err.Error(), want)):
			t.Errorf("event %d: %v, want %q", i, err, want)
		}
	}
	arrived := map[string]bool{}
	for _, d := range content(t, ch, q) {
		arrived[d.MessageId] = true
	}
	for i := range all {
		if id := fmt.Sprint("/shop/", i); arrived[id] != (bad[i] == "") {
			t.Errorf("event %d arrived: %v", i, arrived[id])
		}
	}
}

// In a relay all of these are dead letters at the first attempt.
func TestWhatHasNoWayIsADeadLetter(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	if err := ch.ExchangeDeclare("forbidden", amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ exchange, says string }{
		"no queue":    {"amq.direct", "unroutable"},
		"no exchange": {"missing", "no exchange 'missing'"},
		"no right":    {"forbidden", "ACCESS_REFUSED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, reg := relaytest.NewDatabase(t), handlers.New()
			p := connect(t, r.url(), outboxamqp.Config{Exchange: c.exchange})
			if err := p.Ready(within(t, time.Minute)); (err != nil) != (name == "no exchange") {
				t.Errorf("Ready: %v", err)
			}
			f := forward.Register(reg, placed, p)
			enqueue(t, db, 1, 5, 0)
			run(t, db, reg, 0)
			db.Emptied(t, time.Minute)
			if got := db.Text(t, `SELECT concat_ws(' ', count(*), max(attempt), min(reason)) FROM outbox.dead_task WHERE last_error LIKE '%'||$1||'%'`, c.says); got != "5 1 handler" {
				t.Errorf("dead letters: %s\n%s", got, db.Dump(t))
			}
			if s := f.Stats(); s.Permanent != 5 || s.Unavailable+s.Temporary+s.Published > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A queue that is full counts no attempt; once it has room everything arrives.
func TestAFullQueueCountsNoAttempt(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, amqp.Table{"x-max-length": 2, "x-overflow": "reject-publish"})
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, placed, connect(t, r.url(), outboxamqp.Config{}), forward.To(q), forward.Handler(handlers.MaxAttempts(1), handlers.Keep(time.Hour)))
	enqueue(t, db, 1, 6, 0)
	run(t, db, reg, 0)
	relaytest.Eventually(t, time.Minute, "a refusal", func() bool { return f.Stats().Unavailable > 0 })
	if s := f.Stats(); s.Permanent+s.Temporary > 0 {
		t.Errorf("%+v", s)
	}
	messages, err := ch.Consume(q, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for deadline := time.After(2 * time.Minute); len(ids) < 6; {
		select {
		case d := <-messages:
			ids[d.MessageId] = true
		case <-deadline:
			t.Fatalf("%d of 6 events arrived", len(ids))
		}
	}
	db.Emptied(t, time.Minute)
	if got := db.Text(t, `SELECT concat(count(*), ' ', max(attempt)) FROM outbox.done_task`); got != "6 1" {
		t.Errorf("done and attempts: %s, want 6 1", got)
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
	all[0].To, all[3].To = full.Name, "nowhere"
	for i, key := range []string{"held", "other", "held", "refused", "refused", "held"} {
		all[i].Key = key
	}
	errs := p.Publish(within(t, time.Minute), all)
	if len(errs) != 6 {
		t.Fatalf("%d errors", len(errs))
	}
	for _, i := range []int{0, 2, 5} {
		if _, away := forward.IsUnavailable(errs[i]); !away {
			t.Errorf("event %d: %v", i, errs[i])
		}
	}
	if !forward.IsPermanent(errs[3]) || errs[1] != nil || errs[4] != nil {
		t.Error(errs)
	}
	var ids []string
	for _, d := range content(t, ch, q) {
		ids = append(ids, d.MessageId)
	}
	if got := strings.Join(ids, " "); got != "/shop/1 /shop/4" {
		t.Errorf("arrived: %s", got)
	}
}
