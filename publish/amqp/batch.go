package outboxamqp

import (
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/publisher"
)

// window is how many events a channel has in flight at most. The channel has room for as many
// returned messages, so the library's reader never waits for it to be drained.
const window = 256

var errUnsettled = errors.New("outboxamqp: not settled")

// batch has the events of one call of Publish, and the result of each.
type batch struct {
	events []*forward.Event
	errs   []error          // errUnsettled at first
	next   int              // the first event that was in no group
	held   map[string]error // keys whose last event is to be retried
}

func newBatch(events []*forward.Event) *batch {
	return &batch{events: events, errs: publisher.All(events, errUnsettled), held: map[string]error{}}
}

// group returns the next events that may be in flight together: one of each key. It is empty at the
// end.
func (b *batch) group() (group []int) {
	keys := map[string]bool{}
	for ; b.next < len(b.events) && len(group) < window; b.next++ {
		if key := b.events[b.next].OrderingKey; key != "" {
			if keys[key] {
				break
			}
			if err := b.held[key]; err != nil { // which is no answer to this one: no attempt counts
				b.settle(b.next, forward.Unavailable(fmt.Errorf("outboxamqp: not sent, as an earlier event of its "+
					"key failed: %v", err), 0))
				continue
			}
			keys[key] = true
		}
		group = append(group, b.next)
	}
	return group
}

// settle notes the result of an event; nil means that it is published. Later events of its key wait
// for its retry.
func (b *batch) settle(i int, err error) {
	b.errs[i] = err
	if key := b.events[i].OrderingKey; err != nil && key != "" && !forward.IsPermanent(err) {
		b.held[key] = err
	}
}

// end settles the others, and returns the result of Publish.
func (b *batch) end(err error) []error {
	for i := range b.errs {
		if b.errs[i] == errUnsettled {
			b.settle(i, err)
		}
	}
	return publisher.Result(b.errs)
}
