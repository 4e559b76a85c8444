package guard_test

import (
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
