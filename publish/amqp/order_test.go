package outboxamqp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/forwardtest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// An event that is to be retried holds up its key, so that the order is kept. One that is refused
// for good does not.
func TestAFailedEventHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{})
	all := events(6, q)
	all[0].To, all[3].Data = fullQueue(t, ch), make([]byte, mostBytes+1)
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
