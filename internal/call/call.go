// Package call calls one handler: its context, its timeout, and how the call ended. Panics,
// runtime.Goexit and handlers that do not return cost neither a worker nor the bookkeeping. The
// package knows no SQL.
package call

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// AbandonAfter is how long after its context's end a handler may take to return.
const AbandonAfter = 5 * time.Second

var errAbandoned = errors.New("relay: the handler did not return in time and was abandoned")

// Grace is how much later than the server's statement timeout a handler's context ends: the server
// goes first, as drivers close the connection when a context ends inside a statement.
func Grace(timeout time.Duration) time.Duration { return 250*time.Millisecond + timeout/20 }

// Result is how a handler's call ended.
type Result struct {
	Err       error
	Took      time.Duration
	Abandoned bool // the handler is still running
	Overran   bool // its context ended by the timeout, or as a lease without heartbeats ran out
	Drained   bool // its context ended as the relay stops
	LeaseLost bool // to another relay or an operator
	Canceled  bool
}

// Run calls a handler in a goroutine of its own, with the context. The caller ends that context:
// under rows that the handler left open drivers close the connection then.
func Run(ctx context.Context, handler func(context.Context) error) Result {
	done, start := make(chan error, 1), time.Now()
	go Guarded(func() error { return handler(ctx) }, func(err error) { done <- err })
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(AbandonAfter):
			return Abandoned(ctx, start)
		}
	}
	return Ended(ctx, err, start)
}

// Ended is the result of a call that began at start.
func Ended(ctx context.Context, err error, start time.Time) Result {
	r := Result{Err: err, Took: time.Since(start)}
	if ctx.Err() == nil {
		return r
	}
	cause := context.Cause(ctx)
	r.Drained = errors.Is(cause, outbox.ErrDraining)
	r.Canceled = errors.Is(cause, outbox.ErrCanceled)
	r.LeaseLost = errors.Is(cause, outbox.ErrLeaseLost) && !errors.Is(cause, ErrRanOut)
	r.Overran = !r.Drained && !r.Canceled && !r.LeaseLost
	return r
}

// Abandoned is the result of a call that began at start and has not ended long after its context.
func Abandoned(ctx context.Context, start time.Time) Result {
	r := Ended(ctx, errAbandoned, start)
	r.Abandoned = true
	return r
}

// ErrRanOut is the cause of the end of a handler without heartbeats that did not extend its lease
// in time.
var ErrRanOut = fmt.Errorf("%w: it ran out", outbox.ErrLeaseLost)

// TimedOut is the error of a timeout. Its text is made when it is asked for.
type TimedOut time.Duration

func (t TimedOut) Error() string {
	return fmt.Sprintf("relay: the handler's timeout of %v: %v", time.Duration(t), context.DeadlineExceeded)
}

func (t TimedOut) Unwrap() error { return context.DeadlineExceeded }

// IsGoexit reports whether a handler, or a method of its error, ended its goroutine.
func IsGoexit(err error) bool {
	var p *guard.PanicError
	return errors.As(err, &p) && p != nil && p.Value == any(guard.ErrGoexit)
}

// Guarded calls a handler and then end, whatever the handler does: with nil or a Failure.
// runtime.Goexit goes on after end.
func Guarded(run func() error, end func(error)) {
	var err error
	guard.Do(func() { err = newFailure(run()) }, func(panicked error) {
		if panicked != nil {
			err = newPanic(panicked)
		}
		end(err)
	})
}

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

// Failure is a handler's error. The methods of that error are the app's code, which may panic:
// newFailure calls them, in the handler's goroutine, and nothing does later.
type Failure struct {
	err            error
	text           string
	result         handler.Result
	code           string               // the SQLSTATE in its chain
	some           handlers.BatchResult // of Failures; nil if it is none
	panic          *guard.PanicError    // in its chain
	endedContext   bool
	methodPanicked bool // a method panicked
}

// newFailure is nil for nil.
func newFailure(err error) error {
	if err == nil {
		return nil
	}
	f := readResult(err)
	var some handlers.BatchResult
	f.read("Unwrap, Is or As method", func() { handler.Find(err, &some) })
	if some == nil {
		f.readChain()
		return f
	}
	f.some = make(handlers.BatchResult, len(some)) // the chain has its members: each is of its own task
	for id, one := range some {
		if one != nil {
			member := readResult(one)
			member.readChain()
			f.some[id] = member
		}
	}
	return f
}

// readResult is a Failure with its text and result.
func readResult(err error) *Failure {
	f := &Failure{err: err}
	f.read("Error method", func() { f.text = pgerr.Storable(err.Error()) })
	f.read("Unwrap, Is or As method", func() { f.result = handler.ResultOf(err) })
	return f
}

// readChain looks for errors in the chain.
func (f *Failure) readChain() {
	f.read("Unwrap, Is or As method", func() { f.endedContext, f.code = EndedContext(f.err), pgerr.Code(f.err) })
	f.read("Unwrap, Is or As method", func() { errors.As(f.err, &f.panic) })
}

// newPanic is the Failure of a handler that panicked or ended its goroutine. It calls no method of
// the panic's value: that may be a result of package handlers, and yet the attempt failed.
func newPanic(panicked error) *Failure {
	f := &Failure{err: panicked, text: pgerr.Storable(panicked.Error())}
	errors.As(panicked, &f.panic)
	return f
}

// read calls methods of the error. If one of them panics, the text says so.
func (f *Failure) read(which string, call func()) {
	guard.Do(call, func(panicked error) {
		if panicked == nil || f.methodPanicked {
			return
		}
		said := fmt.Sprintf("%T, whose %s panicked: %v", f.err, which, panicked)
		if f.text != "" {
			said += ": " + f.text
		}
		f.methodPanicked, f.text = true, said
	})
}

func (f *Failure) Error() string { return f.text }

// SQLState is the SQLSTATE of a handler's error, "" for none.
func SQLState(err error) string {
	if f, ok := err.(*Failure); ok {
		return f.code
	}
	return ""
}

// As gives the errors that the relay looks for in a handler's error.
func (f *Failure) As(target any) bool {
	switch t := target.(type) {
	case **handler.Result:
		*t = &f.result
		return true
	case *handlers.BatchResult:
		*t = f.some
		return f.some != nil
	case **guard.PanicError:
		*t = f.panic
		return f.panic != nil
	}
	return false
}

// Noted is a handler's error with a note behind its text.
func Noted(err error, note string) error {
	f, ok := err.(*Failure)
	if !ok {
		return fmt.Errorf("%w (%s)", err, note)
	}
	noted := *f
	noted.text += " (" + note + ")"
	return &noted
}

// Original is the error that the handler returned, for the tests of apps, unless its methods panic.
func Original(err error) error {
	if f, ok := err.(*Failure); ok && !f.methodPanicked {
		return f.err
	}
	return err
}

// EndedContext reports whether a handler failed by a context that it had made itself; the driver
// closed the connection then.
func EndedContext(err error) bool {
	var f *Failure
	if errors.As(err, &f) {
		return f.endedContext
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || pgerr.Code(err) == "57014"
}
