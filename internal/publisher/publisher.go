// Package publisher has the parts that the publishers of events share. It knows no broker.
package publisher

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
)

// ErrClosed is the error of a publisher after Close.
var ErrClosed = errors.New("outbox: the publisher is closed")

// Closed is what Publish returns after Close.
func Closed(events []*forward.Event) []error { return All(events, forward.Unavailable(ErrClosed, 0)) }

// Calls are the running calls of a publisher. The zero value is open. It is safe for concurrent
// use.
type Calls struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Begin begins a call, which ends with End. It returns false after Close.
func (c *Calls) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// End ends a call.
func (c *Calls) End() { c.running.Done() }

// Go runs f in a goroutine that Close waits for. The caller is a running call.
func (c *Calls) Go(f func()) { c.running.Go(f) }

// Close refuses further calls, and waits for the running ones. It may be called several times.
func (c *Calls) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.running.Wait()
}

// All is the same error for each event.
func All(events []*forward.Event, err error) []error { return slices.Repeat([]error{err}, len(events)) }

// Result is what Publish returns: nil if no event has an error.
func Result(errs []error) []error {
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return errs
	}
	return nil
}

// IsAny reports whether err wraps one of the targets.
func IsAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// OfOneEvent reports whether an error for several events may be the fault of one of them: it is not
// marked as the target's or the broker's.
func OfOneEvent(err error) bool {
	action := handlers.ActionOf(err)
	asksToWait := action == handlers.ActionSnooze || action == handlers.ActionRetryAfter
	return err != nil && (forward.IsPermanent(err) ||
		!asksToWait && !forward.IsTargetUnavailable(err) && !forward.IsUnavailable(err))
}

// NotSent is the result of an event that was not sent, or not by itself, for that reason. It comes
// back, no attempt counts, and it says nothing of the target or the broker.
func NotSent(reason error) error { return handlers.SnoozeWith(time.Second, reason) }
