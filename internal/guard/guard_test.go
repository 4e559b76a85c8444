package guard_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/guard"
)

// evil is a value whose methods do something else.
type evil func()

func (e evil) Error() string { e(); return "evil" }

func TestCodeThatDoesNotReturnIsAnError(t *testing.T) {
	var again evil
	again = func() { panic(again) }
	for name, c := range map[string]struct {
		f    func()
		want string
	}{
		"return":                  {func() {}, ""},
		"panic":                   {func() { panic("oops") }, "panic: oops (in github.com/txoutbox/outbox/internal/guard_test.TestCodeThatDoesNotReturn"},
		"panic with an error":     {func() { panic(errors.New("oops")) }, "panic: oops (in "},
		"panic with nil":          {func() { panic(nil) }, "panic: panic called with nil"},
		"panic in panic":          {func() { panic(again) }, "panic: guard_test.evil, which panics as it is printed (in "},
		"Goexit":                  {runtime.Goexit, "runtime.Goexit, or t.FailNow of a test, ended the goroutine"},
		"panic, Goexit in Error":  {func() { panic(evil(runtime.Goexit)) }, "runtime.Goexit, or t.FailNow of a test, ended the goroutine (in "},
		"panic in Error":          {func() { panic(guard.Text(evil(func() { panic("oops") }))) }, "panic: guard_test.evil, whose Error method panicked: panic: oops (in "},
		"Goexit in a deferred":    {func() { defer runtime.Goexit(); panic("oops") }, "runtime.Goexit, or t.FailNow of a test, ended the goroutine (in "},
		"panic in a deferred one": {func() { defer panic("second"); panic("first") }, "panic: second (in "},
	} {
		err := guard.Call(c.f)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got %v, want no error", name, err)
			}
		} else if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

func TestWithinWaitsNoLongerThanItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	one := func() (int, error) { return 1, nil }
	if got, err := guard.Within(ctx, one, nil); got != 1 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := guard.Within(ctx, func() (int, error) { panic("oops") }, nil); err == nil ||
		!strings.HasPrefix(err.Error(), "panic: oops") {
		t.Errorf("got %v, want the panic", err)
	}
	hangs, late, why := make(chan struct{}), make(chan int, 1), errors.New("enough")
	cancel(why)
	got, err := guard.Within(ctx, func() (int, error) { <-hangs; return 1, nil }, func(n int) { late <- n })
	if got != 0 || err != why {
		t.Errorf("got %d, %v, want the cause of the end", got, err)
	}
	close(hangs)
	if <-late != 1 {
		t.Error("the late value is lost")
	}
}
