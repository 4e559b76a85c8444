package run

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

var errAbandoned = errors.New("relay: the handler did not return in time and was abandoned")

// abandonAfter is how long after its context's end a handler may take to return.
const AbandonAfter = 5 * time.Second

// grace is how much later than the server's statement timeout a handler's context ends: the server
// goes first, as drivers close the connection when a context ends inside a statement.
func grace(timeout time.Duration) time.Duration { return 250*time.Millisecond + timeout/20 }

// callResult is how a handler's call ended.
type callResult struct {
	err       error
	abandoned bool // it is still running
	overran   bool // its context ended by the timeout, or as a lease without heartbeats ran out
	drained   bool // its context ended as the relay stops
	leaseLost bool // to another relay or an operator
	canceled  bool
}

// callHandler runs the handler with a context that the caller ends: under rows that the handler left open
// drivers close the connection then. The handler has a goroutine of its own, so that Goexit, a
// panic and a handler that does not return cost neither the worker nor the bookkeeping.
func callHandler(ctx context.Context, h *handler.Handler, tx *sql.Tx, claim handler.Claim, tasks []*store.Task) (out callResult) {
	done := make(chan error, 1)
	go guarded(func() error { return h.Run(ctx, tx, claim, tasks) }, func(err error) { done <- err })
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

// errRanOut is the cause of the end of a handler without heartbeats that did not extend its lease in time.
var errRanOut = fmt.Errorf("%w: it ran out", outbox.ErrLeaseLost)

func timeoutError(timeout time.Duration) error { return timedOut(timeout) }

// timedOut is the error of a timeout. Its text is made when somebody asks for it.
type timedOut time.Duration

func (t timedOut) Error() string {
	return fmt.Sprintf("relay: the handler's timeout of %v: %v", time.Duration(t), context.DeadlineExceeded)
}

func (t timedOut) Unwrap() error { return context.DeadlineExceeded }
