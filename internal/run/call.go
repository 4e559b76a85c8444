package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

var errAbandoned = errors.New("relay: the handler did not return in time and was abandoned")

// AbandonAfter is how long after its context's end a handler may take to return.
const AbandonAfter = 5 * time.Second

// grace is how much later than the server's statement timeout a handler's context ends: the server
// goes first, as drivers close the connection when a context ends inside a statement.
func grace(timeout time.Duration) time.Duration { return 250*time.Millisecond + timeout/20 }

// callResult is how a handler's call ended.
type callResult struct {
	err       error
	took      time.Duration
	abandoned bool // it is still running
	overran   bool // its context ended by the timeout, or as a lease without heartbeats ran out
	drained   bool // its context ended as the relay stops
	leaseLost bool // to another relay or an operator
	canceled  bool
}

// callHandler runs the handler with a context that the caller ends: under rows that the handler
// left open drivers close the connection then. The handler has a goroutine of its own, so that
// Goexit, a panic and a handler that does not return cost neither the worker nor the bookkeeping.
func callHandler(ctx context.Context, h *handler.Handler, tx *sql.Tx, claim handler.Claim, tasks []*store.Task) (out callResult) {
	return callIn(func(call func()) { go call() }, ctx, h, tx, claim, tasks)
}

// callIn is callHandler in a goroutine of the caller's.
func callIn(goroutine func(call func()), ctx context.Context, h *handler.Handler, tx *sql.Tx, claim handler.Claim, tasks []*store.Task) (out callResult) {
	done := make(chan error, 1)
	goroutine(func() {
		guarded(func() error { return h.Run(ctx, tx, claim, tasks) }, func(err error) { done <- err })
	})
	select {
	case out.err = <-done:
	case <-ctx.Done():
		select {
		case out.err = <-done:
		case <-time.After(AbandonAfter):
			out.err, out.abandoned = errAbandoned, true
		}
	}
	out.because(ctx)
	return out
}

// because notes why the handler's context has ended, if it has.
func (out *callResult) because(ctx context.Context) {
	if ctx.Err() == nil {
		return
	}
	cause := context.Cause(ctx)
	out.drained = errors.Is(cause, outbox.ErrDraining)
	out.canceled = errors.Is(cause, outbox.ErrCanceled)
	out.leaseLost = errors.Is(cause, outbox.ErrLeaseLost) && !errors.Is(cause, errRanOut)
	out.overran = !out.drained && !out.canceled && !out.leaseLost
}

// errRanOut is the cause of the end of a handler without heartbeats that did not extend its lease
// in time.
var errRanOut = fmt.Errorf("%w: it ran out", outbox.ErrLeaseLost)

// timedOut is the error of a timeout. Its text is made when somebody asks for it.
type timedOut time.Duration

func (t timedOut) Error() string {
	return fmt.Sprintf("relay: the handler's timeout of %v: %v", time.Duration(t), context.DeadlineExceeded)
}

func (t timedOut) Unwrap() error { return context.DeadlineExceeded }

// IsGoexit reports whether a handler, or a method of its error, ended its goroutine.
func IsGoexit(err error) bool {
	var p *guard.PanicError
	return errors.As(err, &p) && p != nil && p.Value == any(guard.ErrGoexit)
}

// guarded calls a handler and then end, whatever the handler does: with nil or a failure.
// runtime.Goexit goes on after end.
func guarded(run func() error, end func(error)) {
	var err error
	guard.Do(func() { err = newFailure(run()) }, func(broke error) {
		if broke != nil {
			err = panicked(broke)
		}
		end(err)
	})
}

// failure is a handler's error. The methods of that error are the app's code, which may panic:
// newFailure calls them, in the handler's goroutine, and nothing does later.
type failure struct {
	err          error
	text         string
	result       handler.Result
	code         string              // the SQLSTATE in its chain
	some         handlers.BatchError // of failures; nil if it is none
	panic        *guard.PanicError   // in its chain
	endedContext bool
	broken       bool // a method panicked
}

// newFailure is nil for nil.
func newFailure(err error) error {
	if err == nil {
		return nil
	}
	f := readFailure(err)
	var some handlers.BatchError
	f.read("Unwrap, Is or As method", func() { handler.Find(err, &some) })
	if some != nil {
		f.some = make(handlers.BatchError, len(some))
	}
	for id, one := range some {
		if one != nil {
			f.some[id] = readFailure(one)
		}
	}
	return f
}

// readFailure is newFailure of one task.
func readFailure(err error) *failure {
	f := &failure{err: err}
	f.read("Error method", func() { f.text = pgerr.Storable(err.Error()) })
	f.read("Unwrap, Is or As method", func() { f.result = handler.ResultOf(err) })
	f.read("Unwrap, Is or As method", func() { f.endedContext, f.code = endedContext(err), pgerr.Code(err) })
	f.read("Unwrap, Is or As method", func() { errors.As(err, &f.panic) })
	return f
}

// panicked is the failure of a handler that panicked or ended its goroutine. It calls no method of
// the panic's value: that may be a result of package handlers, and yet the attempt failed.
func panicked(broke error) *failure {
	f := &failure{err: broke, text: pgerr.Storable(broke.Error())}
	errors.As(broke, &f.panic)
	return f
}

// read calls methods of the error. If one of them panics, the text says so.
func (f *failure) read(which string, call func()) {
	guard.Do(call, func(broke error) {
		if broke == nil || f.broken {
			return
		}
		said := fmt.Sprintf("%T, whose %s panicked: %v", f.err, which, broke)
		if f.text != "" {
			said += ": " + f.text
		}
		f.broken, f.text = true, said
	})
}

func (f *failure) Error() string { return f.text }

// As gives the errors that the relay looks for in a handler's error.
func (f *failure) As(target any) bool {
	switch t := target.(type) {
	case **handler.Result:
		*t = &f.result
		return true
	case *handlers.BatchError:
		*t = f.some
		return f.some != nil
	case **guard.PanicError:
		*t = f.panic
		return f.panic != nil
	}
	return false
}

// original is the error that the handler returned, for the tests of apps, unless its methods panic.
func original(err error) error {
	if f, ok := err.(*failure); ok && !f.broken {
		return f.err
	}
	return err
}

// endedContext reports whether a handler failed by a context that it had made itself; the driver
// closed the connection then.
func endedContext(err error) bool {
	var f *failure
	if errors.As(err, &f) {
		return f.endedContext
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || pgerr.Code(err) == "57014"
}
