package call

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

// The context of a handler is one as those of package context are, for whoever derives from it or
// asks for the cause.
func TestAContextEndsAsOneOfPackageContext(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, end := range map[string]struct {
		by   func(c *Context, parent context.CancelCauseFunc)
		err  error
		want error
	}{
		"a cause":       {func(c *Context, _ context.CancelCauseFunc) { c.Cancel(boom) }, context.Canceled, boom},
		"the run's end": {func(c *Context, _ context.CancelCauseFunc) { c.Cancel(nil) }, context.Canceled, context.Canceled},
		"its parent":    {func(_ *Context, parent context.CancelCauseFunc) { parent(boom) }, context.Canceled, boom},
		"its time":      {func(c *Context, _ context.CancelCauseFunc) { c.EndAt(time.Now(), TimedOut(1)) }, context.DeadlineExceeded, TimedOut(1)},
		"its time moved": {func(c *Context, _ context.CancelCauseFunc) {
			c.EndAt(time.Now().Add(time.Hour), boom)
			c.EndAt(time.Now(), boom)
		}, context.Canceled, boom},
	} {
		for _, asked := range []bool{true, false} { // before its end
			type key struct{}
			parent, endParent := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
			c, release := ContextOf(parent)
			called := make(chan struct{})
			var derived context.Context
			derive := func() {
				var cancel context.CancelFunc
				derived, cancel = context.WithCancel(context.WithValue(c, new(int), 1))
				t.Cleanup(cancel)
				context.AfterFunc(c, func() { close(called) })
			}
			if c.Err() != nil {
				t.Errorf("%s: %v before", name, c.Err())
			}
			if asked {
				derive()
				if err := errors.Join(derived.Err(), context.Cause(c), context.Cause(derived)); err != nil || c.Value(key{}) != "value" {
					t.Errorf("%s: %v, value %v before", name, err, c.Value(key{}))
				}
			}
			end.by(c, endParent)
			<-c.Done()
			if !asked {
				derive()
			}
			<-derived.Done()
			<-called
			if c.Err() != end.err || derived.Err() != end.err || context.Cause(c) != end.want || context.Cause(derived) != end.want || c.Value(key{}) != "value" {
				t.Errorf("%s: %v and %v, want %v; causes %v and %v, want %v", name, c.Err(), derived.Err(), end.err, context.Cause(c), context.Cause(derived), end.want)
			}
			release()
			endParent(nil)
		}
	}
}

// What a member of a batch's result says is of its own task, and of no other part of the call: a
// deadlock or a panic that the handler took care of, a context of its own, a result.
func TestAMemberOfABatchResultIsOfItsOwnTaskAlone(t *testing.T) {
	t.Parallel()
	some := handlers.BatchResult{1: context.DeadlineExceeded, 2: &pq.Error{Code: "40P01"},
		3: &handlers.PanicError{Value: "oops"}, 4: handlers.Discard(errors.New("enough")), 5: nil}
	for _, err := range []error{some, fmt.Errorf("publish: %w", some), errors.Join(errors.New("first"), some)} {
		var failure error
		Guarded(func() error { return err }, func(err error) { failure = err })
		var p *handlers.PanicError
		if EndedContext(failure) || SQLState(failure) != "" || errors.As(failure, &p) ||
			handler.ResultOf(failure).Action != handler.ActionRetry {
			t.Errorf("%v has what a member has", err)
		}
		var of handlers.BatchResult
		if !errors.As(failure, &of) || len(of) != 4 {
			t.Fatalf("the members are %v", of)
		}
		if !EndedContext(of[1]) || SQLState(of[2]) != "40P01" || !errors.As(of[3], &p) ||
			handler.ResultOf(of[4]).Action != handler.ActionDiscard {
			t.Errorf("%v: a member has lost what it has", err)
		}
	}
}
