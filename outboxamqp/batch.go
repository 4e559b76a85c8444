package outboxamqp

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/forward"
)

// window is how many events a channel has in flight at most. The channel has room for as many
// returned messages, so the library's reader never waits for it to be drained.
const window = 256

var errUnsettled = errors.New("outboxamqp: not settled")

// batch is the events of one call of Publish, and what became of each.
type batch struct {
	events []*forward.Event
	errs   []error // errUnsettled at first
	next   int     // the first event that was in no group
	failed bool
	held   map[string]error // keys whose last event is to be retried
	sent   []bool
	// Routing keys that had an answer, and those that may not be written to.
	answered map[string]bool
	refused  map[string]error
}

func newBatch(events []*forward.Event) *batch {
	b := &batch{events: events, errs: make([]error, len(events)), sent: make([]bool, len(events)),
		held: map[string]error{}, answered: map[string]bool{}, refused: map[string]error{}}
	for i := range b.errs {
		b.errs[i] = errUnsettled
	}
	return b
}

// group returns the next events that may be in flight together: one of each key. It is empty at the
// end.
func (b *batch) group() (group []int) {
	keys := map[string]bool{}
	for ; b.next < len(b.events) && len(group) < window; b.next++ {
		if key := b.events[b.next].Key; key != "" {
			if keys[key] {
				break
			}
			if err := b.held[key]; err != nil { // which is no answer to this one: no attempt counts
				b.settle(b.next, forward.Unavailable(fmt.Errorf("outboxamqp: not sent, as an earlier event of its key failed: %v", err), 0))
				continue
			}
			keys[key] = true
		}
		group = append(group, b.next)
	}
	return group
}

// settle notes what became of an event; nil means that it is published. Later events of its key wait
// for a retry of it.
func (b *batch) settle(i int, err error) {
	b.errs[i] = err
	if err == nil {
		return
	}
	b.failed = true
	if key := b.events[i].Key; key != "" && !forward.IsPermanent(err) {
		b.held[key] = err
	}
}

// answer settles an event by the broker's answer.
func (b *batch) answer(i int, err error) {
	b.answered[b.events[i].To] = true
	b.settle(i, err)
}

// end settles the others, and returns the result of Publish. Without an answer in time a routing key
// is at fault if others had one.
func (b *batch) end(err error) []error {
	late := errors.Is(err, context.DeadlineExceeded) && len(b.answered) > 0
	for i := range b.errs {
		switch {
		case b.errs[i] != errUnsettled:
		case late && b.sent[i] && !b.answered[b.events[i].To]:
			b.settle(i, forward.TargetUnavailable(errors.Unwrap(err), 0))
		default:
			b.settle(i, err)
		}
	}
	if !b.failed {
		return nil
	}
	return b.errs
}
