package call

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Context is the context of a handler: it ends by itself at a moment that can be moved, as
// no deadline of package context can. Deadline returns that moment as it stands. The rarely used
// parts are made when they are used.
type Context struct {
	parent context.Context // of its values
	onEnd  func()          // is called in a goroutine of its own when it ends with a cause; nil: nothing

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

// NewContext is a Context, with the function onEnd or nil. It does not end with its parent.
func NewContext(parent context.Context, onEnd func()) *Context {
	return &Context{parent: parent, onEnd: onEnd}
}

// ContextOf is a Context that ends with its parent, until release is called.
func ContextOf(parent context.Context) (c *Context, release func() bool) {
	c = NewContext(parent, nil)
	return c, context.AfterFunc(parent, func() { c.Cancel(context.Cause(parent)) })
}

// Cancel ends the context: it has ended when it returns. A nil cause is the end of the run.
func (c *Context) Cancel(cause error) {
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

func (c *Context) Done() <-chan struct{} {
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
func (c *Context) Err() error {
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

func (c *Context) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, !c.end.IsZero()
}

// Value is also how package context asks for the cause.
func (c *Context) Value(key any) any { return c.known().Value(key) }

// known is a context of package context that ends as this one does.
func (c *Context) known() context.Context {
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

// EndAt sets the moment at which the context ends, with the cause.
func (c *Context) EndAt(end time.Time, cause error) {
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
func (c *Context) timeOut() {
	c.mu.Lock()
	end, cause := c.end, c.endCause
	c.mu.Unlock()
	if !end.After(time.Now()) {
		c.Cancel(cause)
	}
}

// Extend moves the end to a later moment, if there is one.
func (c *Context) Extend(end time.Time, cause error) {
	if now, bounded := c.Deadline(); bounded && end.After(now) {
		c.EndAt(end, cause)
	}
}
