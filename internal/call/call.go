// Package call calls one handler: its context, its timeout, and how the call ended. Panics,
// runtime.Goexit and handlers that do not return cost neither a worker nor the bookkeeping. The
// package knows no SQL.
package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
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
