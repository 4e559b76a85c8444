package guard_test

import (
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
		place := fmt.Sprintf(", guard/panic_test.go:%d)", want)
		var p *guard.PanicError
		if !errors.As(err, &p) || !strings.HasPrefix(err.Error(), c.text) || !strings.HasSuffix(err.Error(), place) {
			t.Errorf("%s: got %v, want %s…%s", name, err, c.text, place)
		} else if !strings.Contains(string(p.Stack), fmt.Sprintf("guard/panic_test.go:%d", want)) {
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
