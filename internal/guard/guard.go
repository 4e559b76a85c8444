// Package guard calls code that the app gave: handlers, hooks, methods of its values. Such code may panic or
// call runtime.Goexit, and must cost neither the process nor a goroutine of the library.
package guard

import (
	"context"
	"fmt"
)

// Do calls f and then end: with nil if f returned, with a [PanicError] if it panicked or called
// runtime.Goexit. Then the goroutine ends after end; Do returns in all other cases.
func Do(f func(), end func(error)) {
	var err error
	returned := false
	defer func() {
		if !returned && err == nil {
			err = Panic(nil)
		}
		end(err)
	}()
	defer func() { // which ends early if a method of the panic's value calls runtime.Goexit
		if p := recover(); p != nil {
			err = Panic(p)
		}
	}()
	f()
	returned = true
}

// Call is [Do] in a goroutine of its own, which it waits for: runtime.Goexit ends that one alone.
func Call(f func()) error {
	done := make(chan error, 1)
	go Do(f, func(err error) { done <- err })
	return <-done
}

// Within is [Call], but returns ctx's cause at its end if f has not returned: its goroutine stays
// behind until f returns.
func Within(ctx context.Context, f func()) error {
	done := make(chan error, 1)
	go Do(f, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Text is err's text, or says that the method Error panicked. It lets runtime.Goexit through.
func Text(err error) (text string) {
	Do(func() { text = err.Error() }, func(broke error) {
		if broke != nil {
			text = fmt.Sprintf("%T, whose Error method panicked: %v", err, broke)
		}
	})
	return text
}
