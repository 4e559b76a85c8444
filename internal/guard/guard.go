// Package guard calls code that the app gave: handlers, hooks, methods of its values. Such code may panic or
// call runtime.Goexit, and must cost neither the process nor a goroutine of the library.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
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

// ErrGoexit is the Value of a PanicError of code that ended its goroutine.
var ErrGoexit = errors.New("runtime.Goexit, or t.FailNow of a test, ended the goroutine")

// PanicError is an error that package handlers documents.
type PanicError struct {
	Value any
	Stack []byte

	text string
}

func (e *PanicError) Error() string {
	if e.text == "" { // nothing of this package made it
		return describe(e.Value)
	}
	return e.text
}

// Unwrap is the value, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Panic is the error of code that did not return. Its argument is what recover returned: nil means
// runtime.Goexit. The deferred function that called recover calls Panic, so that the frames of the
// code are still on the stack.
func Panic(recovered any) error {
	if again, ok := recovered.(*PanicError); ok {
		return again
	}
	e := &PanicError{Value: recovered, Stack: debug.Stack()}
	if recovered == nil {
		e.Value = ErrGoexit
	}
	e.text = describe(e.Value)
	if at := place(); at != "" {
		e.text += " (in " + at + ")"
	}
	return e
}

// Stack is the stack of the panic in err's chain, or nil.
func Stack(err error) []byte {
	var p *PanicError
	if errors.As(err, &p) && p != nil {
		return p.Stack
	}
	return nil
}

// describe is the text of a panic's value. Package fmt recovers a panic of the value's methods, but
// not a second one as it prints the first one's value.
func describe(value any) (text string) {
	if value == any(ErrGoexit) {
		return ErrGoexit.Error()
	}
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("panic: %T, which panics as it is printed", value)
		}
	}()
	return fmt.Sprint("panic: ", value)
}

// place is the function and line where the first panic began or runtime.Goexit was called: the innermost
// frame of the app or else of a dependency, the libraries, or package runtime.
func place() string {
	var pcs [256]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	this, more := frames.Next()
	p := program{module: strings.TrimSuffix(packageOf(this.Function), "/internal/guard"), main: mainModule}
	var at [ofRuntime + 1]string
	for more {
		var f runtime.Frame
		f, more = frames.Next()
		switch {
		case f.Function == "runtime.gopanic" || f.Function == "runtime.Goexit":
			at = [ofRuntime + 1]string{} // a deferred function has panicked again, as encoding/json does
			p.goroot = strings.TrimSuffix(f.File, "runtime/panic.go")
		case f.Function == p.module+"/internal/guard.Do":
			more = false
		default:
			if o := p.ownerOf(f); at[o] == "" {
				at[o] = lineOf(f)
			}
		}
	}
	return cmp.Or(at[:]...)
}

// lineOf names a frame's function, and its line without the directories of the machine that built it.
func lineOf(f runtime.Frame) string {
	dir, file := path.Split(f.File)
	return fmt.Sprintf("%s, %s:%d", f.Function, path.Join(path.Base(dir), file), f.Line)
}

// packageOf is the path of a function's package.
func packageOf(function string) string {
	function, _, _ = strings.Cut(function, "[") // type arguments
	dir, name := path.Split(function)
	name, _, _ = strings.Cut(name, ".")
	return dir + name
}

// owner is whose code a frame is.
type owner int

const (
	ofApp owner = iota
	ofDependency
	ofLibrary // the standard library or this module
	ofRuntime
)

// program is what tells the owners of its frames.
type program struct {
	module string        // this one's path
	goroot string        // the directory of the standard library's files; "" after go build -trimpath
	main   func() string // the path of the app's module
}

func (p program) ownerOf(f runtime.Frame) owner {
	pkg := packageOf(f.Function)
	first, _, _ := strings.Cut(pkg, "/")
	switch {
	case pkg == "runtime":
		return ofRuntime
	case pkg == "" || f.File == "<autogenerated>":
		return ofLibrary
	case within(pkg, p.module):
		if within(pkg, p.module+"/examples") || within(pkg, p.module+"/bench") || strings.HasSuffix(f.File, "_test.go") {
			return ofApp
		}
		return ofLibrary
	case p.goroot != "" && strings.HasPrefix(f.File, p.goroot):
		return ofLibrary
	case p.goroot == "" && !strings.Contains(first, ".") && pkg != "main" && !within(pkg, p.main()):
		return ofLibrary
	case strings.Contains(f.File, "@v") || strings.Contains(f.File, "/vendor/"):
		return ofDependency
	}
	return ofApp
}

func within(pkg, module string) bool {
	rest, ok := strings.CutPrefix(pkg, module)
	return ok && (rest == "" || rest[0] == '/')
}

func mainModule() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	return info.Main.Path
}
