package call

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
)

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
