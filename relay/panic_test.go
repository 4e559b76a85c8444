package relay_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

var minusOne = -1 // which the compiler must not know

// repeat panics in the standard library.
func repeat() string { return strings.Repeat("a", minusOne) }

var repeatLine = func() int { _, _, line, _ := runtime.Caller(0); return line - 2 }()

// A panic is a failed attempt whose place, value and stack reach the row, the log, the observers and
// OnDead.
func TestAPanicIsFoundWithItsPlaceWhereverItIsTold(t *testing.T) {
	boom := errors.New("boom")
	middleware := func(f func(next handlers.Func) error) handlers.Option {
		return handlers.Use(func(next handlers.Func) handlers.Func {
			return func(context.Context, *handlers.Call) error { return f(next) }
		})
	}
	recovered := handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, c *handlers.Call) error {
			if err := next(ctx, c); err != nil {
				return fmt.Errorf("recovered: %w", err)
			}
			return nil
		}
	}, handlers.Recover())
	panics := map[string]struct {
		handler func()
		opts    []handlers.Option
		value   error
	}{
		"HANDLER":          {func() { repeat() }, nil, nil},
		"MIDDLEWARE":       {nil, []handlers.Option{middleware(func(handlers.Func) error { repeat(); return nil })}, nil},
		"RECOVERED":        {func() { repeat() }, []handlers.Option{recovered}, nil},
		"RESULT":           {func() { panic(handlers.Discard(boom)) }, nil, boom},
		"RECOVERED RESULT": {func() { panic(handlers.Discard(boom)) }, []handlers.Option{recovered}, boom},
		"BATCH ERROR":      {func() { panic(handlers.BatchError{0: boom}) }, []handlers.Option{recovered}, nil},
	}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		for name, p := range panics {
			kinds[kind](reg, name, func(*outbox.Task[payload]) error { p.handler(); return nil },
				append(p.opts, handlers.MaxAttempts(1))...)
			db.Enqueue(t, name, 1)
		}
		var mu sync.Mutex
		found := map[string]int{}
		look := func(taskType string, err error) {
			mu.Lock()
			defer mu.Unlock()
			var p *handlers.PanicError
			if !errors.As(err, &p) || len(p.Stack) == 0 {
				t.Errorf("%s: %v is no PanicError with a stack", taskType, err)
				return
			}
			if want := panics[taskType].value; want != nil && !errors.Is(err, want) {
				t.Errorf("%s: %v is not %v", taskType, err, want)
			}
			found[taskType]++
		}
		log := once(t, db, reg, relay.Config{
			OnDead: func(_ context.Context, d relay.DeadLetter) { look(d.Type, d.Err) },
			Observers: []relay.Observer{{Ended: func(e relay.RunEnd) {
				for _, one := range e.Tasks {
					look(e.Type, one.Err)
				}
			}}},
		})
		for name, p := range panics {
			place := "relay/panic_test.go:"
			if p.value == nil && name != "BATCH ERROR" {
				place = fmt.Sprintf("(in github.com/txoutbox/outbox/relay_test.repeat, relay/panic_test.go:%d)", repeatLine)
			}
			if got := db.Text(t, `SELECT last_error FROM outbox.dead_task WHERE task_type = $1`, name); !strings.Contains(got,
				place) {
				t.Errorf("%s: last_error is %q, want %q", name, got, place)
			}
			if found[name] != 2 {
				t.Errorf("%s: observers and OnDead found %d panics, want 2", name, found[name])
			}
		}
		if n := strings.Count(log, "stack="); n != len(panics) || !strings.Contains(log, "strings.Repeat(") {
			t.Errorf("%d records have a stack, want %d:\n%s", n, len(panics), log)
		}
	})
}
