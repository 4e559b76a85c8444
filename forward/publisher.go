package forward

import (
	"context"
	"errors"
	"time"
)

// Publisher sends events to a broker. It is safe for concurrent use.
type Publisher interface {
	// Publish sends events and waits until the broker has acknowledged or refused each. It returns
	// nil if all are acknowledged; else an error or nil for each, in their order. It keeps the order
	// of the events of one OrderingKey, and ends soon after ctx. It changes no event, and keeps none
	// after it returned. An error may be one of handlers.Snooze or handlers.RetryAfter: a wait of
	// more than three days is cut.
	Publish(ctx context.Context, events []*Event) []error
}

// marked is an error with the mark of a fault.
type marked[fault any] struct {
	error
	after time.Duration // when to try again
}

func (m marked[fault]) Unwrap() error { return m.error }

type (
	ofEvent  struct{} // for good
	ofBroker struct{}
	ofTarget struct{}
)

func mark[fault any](err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return marked[fault]{err, max(after, 0)}
}

func isMarked[fault any](err error) (after time.Duration, yes bool) {
	var m marked[fault]
	yes = errors.As(err, &m)
	return m.after, yes
}

// Permanent marks an error of a Publisher that no retry can mend, as with too large a message or an
// invalid name: the event becomes a dead letter at once. A nil err gives nil.
func Permanent(err error) error { return mark[ofEvent](err, 0) }

// IsPermanent reports whether err, or an error in its chain, is marked by [Permanent].
func IsPermanent(err error) bool {
	_, yes := isMarked[ofEvent](err)
	return yes
}

// Unavailable marks an error of a Publisher as the broker's: there is no connection to it at all.
// No attempt is counted, and the Forwarder sends nothing for a while if nothing passed. Mark known
// connection errors only: an unknown error may be the message's. after is how long to wait, at most
// an hour; 0 or less leaves that to the circuit, which waits a second, then two, at most a minute.
// A nil err gives nil.
func Unavailable(err error, after time.Duration) error { return mark[ofBroker](err, after) }

// IsUnavailable reports whether err, or an error in its chain, is marked by [Unavailable].
// [ErrUnavailable] is not.
func IsUnavailable(err error) bool {
	_, yes := isMarked[ofBroker](err)
	return yes
}

// TargetUnavailable marks an error of a Publisher as that of the event's target ([Event.To]): it
// takes nothing now, as a full queue, a subject at its limit, or a topic without a leader. It is an
// answer, so the attempt of the event counts; but if after is positive, the target asks to wait, as
// by [handlers.RetryAfter]. If nothing passed to the target, its other events are postponed without
// an attempt, and those of other targets are sent. after is as of [Unavailable]. A nil err gives
// nil.
func TargetUnavailable(err error, after time.Duration) error { return mark[ofTarget](err, after) }

// IsTargetUnavailable reports whether err, or an error in its chain, is marked by
// [TargetUnavailable].
func IsTargetUnavailable(err error) bool {
	_, yes := isMarked[ofTarget](err)
	return yes
}
