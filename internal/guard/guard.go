// Package guard calls code that the app gave: handlers, hooks, methods of its values. Such code may panic or
// call runtime.Goexit, and must cost neither the process nor a goroutine of the library.
package guard

import (
	"cmp"
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

// Within calls f in a goroutine of its own, and returns what f returns, its [PanicError], or ctx's
// cause at ctx's end. Then the goroutine stays behind until f returns, and late gets f's value, unless
// late is nil or f returned an error.
func Within[T any](ctx context.Context, f func() (T, error), late func(T)) (value T, err error) {
	done := make(chan struct{})
	var result T
	var failed error
	go Do(func() { result, failed = f() }, func(panicked error) {
		failed = cmp.Or(panicked, failed)
		select {
		case done <- struct{}{}:
		case <-ctx.Done():
			if failed == nil && late != nil {
				late(result)
			}
		}
	})
	select {
	case <-done:
		return result, failed
	case <-ctx.Done():
		return value, context.Cause(ctx)
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
