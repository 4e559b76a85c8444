package handlers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

func TestMiddlewareOfTheRegistryIsOutsideThatOfTheHandlerAndTheFirstIsOutermost(t *testing.T) {
	var order []string
	note := func(name string) handlers.Middleware {
		return func(next handlers.Func) handlers.Func {
			return func(ctx context.Context, call *handlers.Call) error {
				order = append(order, name)
				defer func() { order = append(order, "/"+name) }()
				return next(ctx, call)
			}
		}
	}
	r := handlers.New()
	r.Use(note("1"))
	handlers.Leased(r, sendMail, func(context.Context, *outbox.Task[mail]) error {
		order = append(order, "handler")
		return nil
	}, handlers.Use(note("4"), note("5")), handlers.Use(note("6")))
	r.Use(note("2"), note("3")) // also for those before
	for range 2 {               // the same each time
		order = nil
		if err := call(t, r, handler.Claim{}, `{}`); err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(order, " "), "1 2 3 4 5 6 handler /6 /5 /4 /3 /2 /1"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// An option is one value for several handlers: the app may use its slice again.
func TestTheMiddlewareOfAnOptionIsThatOfItsCall(t *testing.T) {
	called := 0
	m := []handlers.Middleware{func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			called++
			return next(ctx, call)
		}
	}}
	use := handlers.Use(m...)
	clear(m)
	err := leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error { return nil }, use)
	if err != nil || called != 1 {
		t.Errorf("%v, after %d calls", err, called)
	}
}

func TestMiddlewareSeesTheCallAndCanReplaceItsResult(t *testing.T) {
	busy := func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			if call.Type != "SEND_MAIL" || call.Kind != "leased" || len(call.Tasks) != 1 ||
				string(call.Tasks[0].Payload) != `{}` {
				t.Errorf("got %+v", call)
			}
			return handlers.Snooze(time.Minute)
		}
	}
	err := leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error {
		t.Error("it was called")
		return nil
	}, handlers.Use(busy))
	if handler.ResultOf(err).Action != handler.ActionSnooze {
		t.Errorf("got %v, want the middleware's result", err)
	}
}

// The compiler must not know these values.
var (
	zero    int
	list    []int
	pointer *mail
	value   any = "text"
	keys        = map[any]int{}
)

func TestMiddlewareGetsAPanicOfTheHandlerAsAnErrorThatSaysWhere(t *testing.T) {
	for _, c := range []struct {
		want string
		f    func()
	}{
		{"panic: no luck (in ", func() { panic("no luck") }},
		{"panic: busy (in ", func() { panic(errBusy) }},
		{"panic: panic called with nil argument", func() { panic(nil) }},
		{"panic: runtime error: integer divide by zero (in ", func() { zero = 1 / zero }},
		{"panic: runtime error: index out of range [7] with length 0 (in ", func() { zero = list[7+zero] }},
		{"panic: runtime error: invalid memory address or nil pointer dereference (in ", func() { zero = pointer.Count }},
		{"panic: interface conversion: interface {} is string, not int (in ", func() { zero = value.(int) }},
		{"hash of unhashable type", func() { keys[list] = 1 }},
		{"panic: runtime error: makeslice: len out of range (in ", func() { list = make([]int, zero-1) }},
	} {
		f := runtime.FuncForPC(reflect.ValueOf(c.f).Pointer())
		_, line := f.FileLine(f.Entry())
		var err error
		_ = leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error { c.f(); return nil },
			handlers.Use(func(next handlers.Func) handlers.Func {
				return func(ctx context.Context, call *handlers.Call) error { err = next(ctx, call); return err }
			}))
		wantText(t, fmt.Sprint(err), c.want, fmt.Sprintf("(in %s, handlers/middleware_test.go:%d)", f.Name(), line))
		var p *handlers.PanicError
		if !errors.As(err, &p) || len(p.Stack) == 0 {
			t.Errorf("%v is no PanicError with a stack", err)
		}
	}
}

// What is no panic of the handler goes on as it is.
func TestMiddlewareGetsResultsAsTheyAreAndPanicsOfOtherMiddlewareAsPanics(t *testing.T) {
	for _, want := range []error{nil, errBusy, handlers.Snooze(1)} {
		err := leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error { return want })
		if err != want { // the same, not wrapped
			t.Errorf("got %v, want %v", err, want)
		}
	}
	inner := func(handlers.Func) handlers.Func {
		return func(context.Context, *handlers.Call) error { panic("no luck") }
	}
	wantText(t, panics(t, func() { _ = leased(t, `{}`, nothingLeased, handlers.Use(inner)) }), "no luck")
	// Goexit is no panic: the goroutine ends.
	done := make(chan string, 2)
	go func() {
		defer func() { done <- "ended" }()
		err := leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error { runtime.Goexit(); return nil })
		done <- fmt.Sprint("returned ", err)
	}()
	if got := <-done; got != "ended" {
		t.Errorf("Goexit: it %s, want the goroutine ended", got)
	}
}

// Log does not repeat the relay's records.
func TestLogSaysWhatTheRelayDoesNotAndNoPayload(t *testing.T) {
	for _, c := range []struct {
		name   string
		result error
		want   string // "": nothing
	}{
		{"done", nil, `level=DEBUG msg="outbox: task done" task_type=SEND_MAIL`},
		{"failed", errBusy, ""},
		{"retried", handlers.RetryAfter(time.Minute, errBusy), ""},
		{"dead", handlers.Dead(errBusy), ""},
		{"snoozed", fmt.Errorf("wrapped: %w", handlers.Snooze(time.Minute)),
			`level=INFO msg="outbox: task snoozed" task_type=SEND_MAIL`},
		{"discarded", handlers.Discard(errBusy), ""},
		{"again", handlers.RunAgain(time.Minute), `level=INFO msg="outbox: task runs again" task_type=SEND_MAIL`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			log := handlers.Log(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
			err := leased(t, `{"To": "hunter2"}`, func(context.Context, *outbox.Task[mail]) error { return c.result },
				handlers.Use(log))
			if err != c.result { // the same, not wrapped
				t.Errorf("got %v, want %v", err, c.result)
			}
			got := out.String()
			if c.want == "" {
				if got != "" {
					t.Errorf("got %s, want nothing", got)
				}
				return
			}
			wantText(t, got, c.want, "task_id=1", "attempt=1", "duration=")
			if c.result != nil {
				wantText(t, got, "error=", c.result.Error())
			}
			if strings.Count(got, "\n") != 1 || strings.Contains(got, secret) ||
				(c.result == nil) == strings.Contains(got, "error=") {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestLogWithoutALoggerTakesTheRelaysOrTheDefault(t *testing.T) {
	var byDefault, ofRelay bytes.Buffer
	logger := func(to *bytes.Buffer) *slog.Logger {
		return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r := handlers.New()
	r.Use(handlers.Log(nil))
	handlers.Batch(r, sendMail, 10, nothingBatch)
	previous := slog.Default()
	slog.SetDefault(logger(&byDefault)) // after Log was called
	defer slog.SetDefault(previous)
	for _, claim := range []handler.Claim{{}, {Log: logger(&ofRelay)}} {
		if err := call(t, r, claim, `{"To": "hunter2"}`, `{"To": "hunter2"}`); err != nil {
			t.Error(err)
		}
	}
	for _, out := range []string{byDefault.String(), ofRelay.String()} {
		if strings.Count(out, "tasks=2") != 1 || strings.Contains(out, secret) {
			t.Errorf("got %s", out)
		}
	}
}
