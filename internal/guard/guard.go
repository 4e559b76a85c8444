// Package guard calls code that the app gave: handlers, hooks, methods of its values. Such code may panic or
// call runtime.Goexit, and must cost neither the process nor a goroutine of the library.
package guard

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
)

// ErrGoexit is the error of code that ended its goroutine.
var ErrGoexit = errors.New("it ended its goroutine (runtime.Goexit)")

// Do calls f and then end: with nil if f returned, with [Panic] if it panicked, with ErrGoexit if it called
// runtime.Goexit. Then the goroutine ends after end; Do returns in all other cases.
func Do(f func(), end func(error)) {
	err := ErrGoexit
	defer func() { end(err) }()
	defer func() { // which ends early if a method of the panic's value calls runtime.Goexit
		if p := recover(); p != nil {
			err = Panic(p)
		}
	}()
	f()
	err = nil
}

// Call is [Do] in a goroutine of its own, which it waits for: runtime.Goexit ends that one alone.
func Call(f func()) error {
	done := make(chan error, 1)
	go Do(f, func(err error) { done <- err })
	return <-done
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

// Panic describes a recovered panic: its value, and the function and line that panicked.
func Panic(p any) error {
	value := print(p)
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	panicked := false
	for {
		f, more := frames.Next()
		// Between the two lie the runtime's own functions, for an index, a nil map and so on.
		if panicked && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Errorf("panic: %s (in %s, line %d)", value, f.Function, f.Line)
		}
		panicked = panicked || f.Function == "runtime.gopanic"
		if !more {
			return fmt.Errorf("panic: %s", value)
		}
	}
}

// print is the text of a panic's value. Package fmt recovers a panic of the value's methods, but not a second one
// as it prints the first one's value.
func print(p any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T, which panics as it is printed", p)
		}
	}()
	return fmt.Sprint(p)
}
