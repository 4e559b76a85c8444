package run

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// limited is the context of a leased handler: it ends by itself at a moment that can be moved, as
// no deadline of package context can. Deadline tells that moment as it stands. What few handlers
// ask for is made when they do.
type limited struct {
	parent context.Context // of its values; whoever makes a limited sees to it that it ends with its parent
	onEnd  func()          // is called in a goroutine of its own when it ends, but for the end of its run

	mu       sync.Mutex
	ended    bool
	cause    error
	done     chan struct{}
	inner    context.Context // tells package context the cause
	endInner context.CancelCauseFunc
	end      time.Time // zero: none
	endCause error
	timer    *time.Timer
}

// newLimited is a limited that ends with its parent, until release is called.
func newLimited(parent context.Context) (c *limited, release func() bool) {
	c = &limited{parent: parent}
	return c, context.AfterFunc(parent, func() { c.cancel(context.Cause(parent)) })
}

// cancel ends the context: it has ended when it returns. A nil cause is the end of the run.
func (c *limited) cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	if cause != nil && c.onEnd != nil {
		go c.onEnd()
	}
	if c.cause = cause; cause == nil {
		c.cause = context.Canceled
	}
	c.ended = true
	if c.inner != nil {
		c.endInner(c.cause)
	}
	if c.done != nil {
		close(c.done)
	}
}

func (c *limited) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// Err is context.DeadlineExceeded where the time has run out, as of a context with a deadline.
func (c *limited) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.ended:
		return nil
	case errors.Is(c.cause, context.DeadlineExceeded):
		return context.DeadlineExceeded
	}
	return context.Canceled
}

func (c *limited) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, !c.end.IsZero()
}

// Value is also how package context asks for the cause.
func (c *limited) Value(key any) any { return c.known().Value(key) }

// known is a context of package context that ends as this one does.
func (c *limited) known() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.endInner = context.WithCancelCause(context.WithoutCancel(c.parent))
		if c.ended {
			c.endInner(c.cause)
		}
	}
	return c.inner
}

// endAt sets the moment at which the context ends, with the cause.
func (c *limited) endAt(end time.Time, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.end, c.endCause = end, cause
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(end), c.timeOut)
	} else {
		c.timer.Reset(time.Until(end))
	}
}

// timeOut ends the context, unless its end was moved when the timer fired.
func (c *limited) timeOut() {
	c.mu.Lock()
	end, cause := c.end, c.endCause
	c.mu.Unlock()
	if !end.After(time.Now()) {
		c.cancel(cause)
	}
}

// extend moves the end to a later moment, if there is one.
func (c *limited) extend(end time.Time, cause error) {
	if now, limited := c.Deadline(); limited && end.After(now) {
		c.endAt(end, cause)
	}
}

// timeoutOf is how long a call for these tasks may take, 0 for any time: the longest that one of
// them asks for.
func timeoutOf(h *handler.Handler, rows ...*store.Row) (longest time.Duration) {
	for _, r := range rows {
		d := h.Timeout + h.Lease // one of them
		if own, set := r.Timeout(); set {
			d = own
		}
		if h.Kind != handler.KindLeased {
			d = min(d, handlers.MaxTxTimeout)
		}
		longest = max(longest, d)
	}
	return longest
}

// leaseFor is how long a Leased handler's row stays its own for a timeout: by then the handler has
// been abandoned, and its failure recorded.
func leaseFor(timeout time.Duration) time.Duration {
	return timeout + grace(timeout) + 2*AbandonAfter + pg.Bookkeeping
}
