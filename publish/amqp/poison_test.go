package outboxamqp_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/txoutbox/outbox/internal/testing/forwardtest"
	outboxamqp "github.com/txoutbox/outbox/publish/amqp"
)

// Events of other calls share the connection that an event ends, again and again. None of them is
// at fault.
func TestAnEventThatEndsTheConnectionUsesNoAttemptOfOtherCalls(t *testing.T) {
	t.Parallel()
	r := broker(t)
	ch := channel(t, r)
	q := queue(t, ch)
	p := connect(t, r.url(), outboxamqp.Config{DialConfig: &amqp.Config{Dial: dialPoisoned(amqp.InternalError)}})
	forwardtest.Ready(t, p)
	var calls sync.WaitGroup
	var blamed atomic.Int64
	for n := range 4 {
		calls.Go(func() {
			for round := range 25 {
				all := events(10, q)
				for _, e := range all {
					e.ID = fmt.Sprintf("%d-%d-%s", n, round, e.ID)
				}
				if n < 2 {
					all[3].Data = []byte(`"poison"`)
				}
				for i, err := range p.Publish(within(t, time.Minute), all) {
					switch fault := forwardtest.Fault(err); {
					case string(all[i].Data) != `"poison"` && fault != "none" && fault != "the broker's":
						t.Errorf("event %s: %s: %v", all[i].ID, fault, err)
					case fault == "the event's":
						blamed.Add(1)
					}
				}
			}
		})
	}
	calls.Wait()
	if n := blamed.Load(); n < 10 {
		t.Errorf("%d of 50 are at fault", n)
	}
}
