package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
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

var minus = -1 // which the compiler must not know

// line is that of its caller.
func line() int {
	_, _, n, _ := runtime.Caller(1)
	return n
}

var errOops = errors.New("oops")

type badJSON struct{}

var badJSONLine int

func (*badJSON) MarshalJSON() ([]byte, error) { panic("no JSON") }

var marshalLine = line() - 2

func (*badJSON) UnmarshalJSON([]byte) error {
	badJSONLine = line() + 1
	panic("no JSON")
}

// reported is what apps defer to tell an error tracker of a panic.
func reported() {
	if p := recover(); p != nil {
		panic(p)
	}
}

func TestAPanicNamesTheFunctionAndLineOfTheApp(t *testing.T) {
	var at int
	for name, c := range map[string]struct {
		f    func()
		line func() int
		text string
	}{
		"in the standard library": {func() { at = line(); _ = strings.Repeat("a", minus) }, nil, "panic: strings: negative Repeat count (in "},
		"by itself":               {func() { at = line(); panic(errOops) }, nil, "panic: oops (in "},
		"nil":                     {func() { at = line(); panic(nil) }, nil, "panic: panic called with nil argument"},
		"Goexit":                  {func() { at = line(); runtime.Goexit() }, nil, "runtime.Goexit, or t.FailNow of a test, ended the goroutine (in "},
		"in a callback of a sort": {func() {
			slices.SortFunc([]int{1, 2}, func(int, int) int {
				at = line() + 1
				panic("oops")
			})
		}, nil, "panic: oops (in "},
		"in UnmarshalJSON": {func() { _ = json.Unmarshal([]byte(`{"A": 1}`), &struct{ A badJSON }{}) }, func() int { return badJSONLine }, "panic: no JSON (in "},
		"in a dependency":  {func() { at = line(); retry.NewConstant(time.Duration(minus)) }, nil, "panic: t must be greater than 0 (in "},
		"in MarshalJSON":   {func() { _, _ = json.Marshal(&badJSON{}) }, func() int { return marshalLine }, "panic: no JSON (in github.com/"},
		"a nil map": {func() {
			m := map[string]map[string]int{}["none"]
			at = line() + 1
			m["a"]++
		}, nil, "panic: assignment to entry in nil map (in "},
		"again after a recover": {func() {
			defer reported()
			at = line() + 1
			_ = strings.Repeat("a", minus)
		}, nil, "panic: strings: negative Repeat count (in "},
		"after one that is over": {func() {
			func() {
				defer func() { _ = recover() }()
				panic("over")
			}()
			at = line() + 1
			panic("oops")
		}, nil, "panic: oops (in "},
	} {
		err := guard.Call(c.f)
		want := at
		if c.line != nil {
			want = c.line()
		}
		place := fmt.Sprintf(", guard/guard_test.go:%d)", want)
		var p *guard.PanicError
		if !errors.As(err, &p) || !strings.HasPrefix(err.Error(), c.text) || !strings.HasSuffix(err.Error(), place) {
			t.Errorf("%s: got %v, want %s…%s", name, err, c.text, place)
		} else if !strings.Contains(string(p.Stack), fmt.Sprintf("guard/guard_test.go:%d", want)) {
			t.Errorf("%s: the stack has no line %d:\n%s", name, want, p.Stack)
		}
	}
}

func TestAPanicUnwrapsToItsValue(t *testing.T) {
	err := guard.Call(func() { panic(errOops) })
	if !errors.Is(err, errOops) {
		t.Errorf("%v is not %v", err, errOops)
	}
	if again := guard.Call(func() { panic(err) }); again != err {
		t.Errorf("a panic with the error of a panic is %v, want %v", again, err)
	}
	if err := guard.Call(runtime.Goexit); !errors.Is(err, guard.ErrGoexit) {
		t.Errorf("%v is not %v", err, guard.ErrGoexit)
	}
	if got := (&guard.PanicError{Value: "made by a test"}).Error(); got != "panic: made by a test" {
		t.Errorf("got %q", got)
	}
}
