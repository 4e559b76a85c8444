package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// limited is the context of a leased handler: it ends by itself at a moment that can be moved, as no deadline of
// package context can. Deadline tells that moment as it stands.
type limited struct {
	context.Context // keeps the cause
	cancelCause     context.CancelCauseFunc

	mu     sync.Mutex
	done   chan struct{} // of its own, so that derived contexts take Err from here; made when it is asked for
	closed bool          // done is
	end    time.Time     // zero: none
	timer  *time.Timer
}

func newLimited(parent context.Context) *limited {
	ctx, cancel := context.WithCancelCause(parent)
	return &limited{Context: ctx, cancelCause: cancel}
}

// cancel ends the context: it has ended when it returns.
func (c *limited) cancel(cause error) {
	c.cancelCause(cause)
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.close()
}

// close closes done, if it was made.
func (c *limited) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done != nil && !c.closed {
		close(c.done)
		c.closed = true
	}
}

func (c *limited) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.closed = c.Context.Err() != nil; c.closed {
			close(c.done)
		} else {
			context.AfterFunc(c.Context, c.close)
		}
	}
	return c.done
}

// Err is context.DeadlineExceeded where the time has run out, as of a context with a deadline.
func (c *limited) Err() error {
	c.mu.Lock()
	open := c.done != nil && !c.closed
	c.mu.Unlock()
	if open || c.Context.Err() == nil {
		return nil
	}
	if errors.Is(context.Cause(c.Context), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *limited) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, !c.end.IsZero()
}

// AfterFunc saves package context a goroutine for each derived context.
func (c *limited) AfterFunc(f func()) (stop func() bool) {
	done := c.Done()
	return context.AfterFunc(c.Context, func() {
		<-done
		f()
	})
}

// endAt sets the moment at which the context ends, with the cause.
func (c *limited) endAt(end time.Time, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() != nil {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.end = end
	c.timer = time.AfterFunc(time.Until(end), func() {
		c.mu.Lock()
		moved := !c.end.Equal(end)
		c.mu.Unlock()
		if !moved {
			c.cancel(cause)
		}
	})
}

// extend moves the end to a later moment, if there is one.
func (c *limited) extend(end time.Time, cause error) {
	if now, limited := c.Deadline(); limited && end.After(now) {
		c.endAt(end, cause)
	}
}

// errRanOut is the cause of the end of a handler without heartbeats that did not extend its lease in time.
var errRanOut = fmt.Errorf("%w: it ran out", outbox.ErrLeaseLost)

func timeoutError(timeout time.Duration) error { return timedOut(timeout) }

// timedOut is the error of a timeout. Its text is made when somebody asks for it.
type timedOut time.Duration

func (t timedOut) Error() string {
	return fmt.Sprintf("relay: the handler's timeout of %v: %v", time.Duration(t), context.DeadlineExceeded)
}

func (t timedOut) Unwrap() error { return context.DeadlineExceeded }

// timeoutOf is how long a call for these tasks may take, 0 for any time: the longest that one of them asks for.
func timeoutOf(h *handlers.Handler, rows ...*row) (longest time.Duration) {
	for _, r := range rows {
		d := h.Timeout + h.Lease // one of them
		if r.timeoutMS.Valid {
			d = time.Duration(r.timeoutMS.Int64) * time.Millisecond
		}
		if h.Kind != handlers.KindLeased {
			d = min(d, handlers.MaxTxTimeout)
		}
		longest = max(longest, d)
	}
	return longest
}

// leaseFor is how long a Leased handler's row stays its own for a timeout: by then the handler has been
// abandoned, and its failure recorded.
func leaseFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + 2*abandonAfter + bookkeeping
}

// rowLease is how long a claim leases a row, in microseconds: as registered, or as for a timeout of the task's own
// in milliseconds. Without heartbeats the lease is the timeout.
func rowLease(h *handlers.Handler) (registered any, perMS, margin int64) {
	if h.Lease > 0 {
		return h.Lease.Microseconds(), 1000, 0
	}
	if h.Timeout > 0 {
		registered = leaseFor(h.Timeout).Microseconds()
	}
	margin = leaseFor(0).Microseconds()
	return registered, (leaseFor(time.Second).Microseconds() - margin) / 1000, margin
}
