package outboxamqp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

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

// An event that is to be retried holds up its key, so that the order is kept. One that is refused
// for good does not.
func TestAFailedEventHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch, nil)
	full, err := ch.QueueDeclare(q+"-full", true, false, false, false,
		amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
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
	for i, want := range map[int]string{0: "the target's", 2: "the broker's",
		5: "the broker's"} { // no attempt counts of what is not sent
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
