package handlers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

var errBusy = errors.New("busy")

func TestResultsAreFoundThroughWrapping(t *testing.T) {
	for name, wrap := range map[string]func(error) error{
		"as it is":    func(err error) error { return err },
		"fmt.Errorf":  func(err error) error { return fmt.Errorf("mail: %w", fmt.Errorf("send: %w", err)) },
		"errors.Join": func(err error) error { return errors.Join(errors.New("first"), err) },
	} {
		for _, c := range []struct {
			err    error
			action handlers.Action
			wait   time.Duration
		}{
			{handlers.Snooze(time.Minute), handlers.ActionSnooze, time.Minute},
			{handlers.SnoozeWith(time.Minute, errBusy), handlers.ActionSnooze, time.Minute},
			{handlers.RunAgain(time.Minute), handlers.ActionRunAgain, time.Minute},
			{handlers.RunAgainWith(&outbox.Task[int]{ID: 1, Type: "A"}, time.Minute, 7), handlers.ActionRunAgain, time.Minute},
			{handlers.RetryAfter(time.Minute, errBusy), handlers.ActionRetryAfter, time.Minute},
			{handlers.Discard(errBusy), handlers.ActionDiscard, 0},
			{handlers.Dead(errBusy), handlers.ActionDead, 0},
			{errBusy, handlers.ActionRetry, 0},
		} {
			err := wrap(c.err)
			got := handler.ResultOf(err)
			if action := handlers.ActionOf(err); action != c.action || got.Wait != c.wait {
				t.Errorf("%s, %v: got %s after %v, want %s after %v", name, c.err, action, got.Wait, c.action, c.wait)
			}
			// with the context that wrapping added
			if got.Err.Error() != err.Error() || errors.Is(got.Err, errBusy) != errors.Is(c.err, errBusy) ||
				got.Reason != (c.action == handlers.ActionSnooze && errors.Is(c.err, errBusy)) {
				t.Errorf("%s: got %v, want %v", name, got.Err, err)
			}
		}
	}
}

// A result that does not say done finishes no task, whatever it was given.
func TestANilErrorIsNoSuccess(t *testing.T) {
	for want, all := range map[handlers.Action][]error{
		handlers.ActionDone: {nil, handlers.Discard(nil), handlers.BatchResult(nil), handlers.BatchResult{}, handlers.BatchResult{5: nil},
			fmt.Errorf("wrapped: %w", handlers.BatchResult{})},
		handlers.ActionRetryAfter: {handlers.RetryAfter(time.Hour, nil), handlers.RetryAfter(1, nil),
			handlers.RetryAfter(time.Hour, handlers.BatchResult{}), handlers.RetryAfter(time.Hour, handlers.Discard(errBusy))},
		handlers.ActionDead:   {handlers.Dead(nil), handlers.Dead(handlers.BatchResult{})},
		handlers.ActionSnooze: {handlers.Snooze(0), handlers.SnoozeWith(0, nil)},
		handlers.ActionRetry: {handlers.RetryAfter(0, nil), handlers.RetryAfter(-time.Hour, nil), &handlers.BatchResult{},
			&handlers.BatchResult{5: handlers.Discard(errBusy)}},
	} {
		for _, err := range all {
			if got := handlers.ActionOf(err); got != want {
				t.Errorf("ActionOf(%v) is %q, want %q", err, got, want)
			}
		}
	}
}

// Of several results the one counts that finishes the task least.
func TestOfSeveralResultsTheMostCarefulCounts(t *testing.T) {
	discard, again, dead, later := handlers.Discard(errBusy), handlers.RunAgain(time.Hour), handlers.Dead(errBusy), handlers.Snooze(time.Hour)
	for _, c := range []struct {
		all  []error
		want handlers.Action
	}{
		{[]error{discard, again}, handlers.ActionRunAgain},
		{[]error{discard, errBusy, later}, handlers.ActionSnooze},
		{[]error{again, dead}, handlers.ActionDead},
		{[]error{later, dead, discard}, handlers.ActionSnooze}, // the first
		{[]error{dead, later}, handlers.ActionDead},
		{[]error{discard, fmt.Errorf("send: %w", dead)}, handlers.ActionDead},
		{[]error{discard, discard}, handlers.ActionDiscard},
	} {
		if got := handlers.ActionOf(errors.Join(c.all...)); got != c.want {
			t.Errorf("%v: %q, want %q", c.all, got, c.want)
		}
	}
}

// A BatchResult that does not tell for sure which tasks are done finishes none, also where a task
// of the batch does not decode.
func TestABatchResultThatIsNotOfItsBatchIsAnErrorForAll(t *testing.T) {
	const good, bad = `{"To": "a"}`, `{"To": 1}`
	for _, payloads := range [][]string{{good, good}, {good, bad}, {bad, good, good}, {good}} {
		for want, result := range map[string]error{
			"a result for task 0, ":              handlers.BatchResult{0: errBusy, 1: nil, 77: nil},
			"a result for task 99, ":             handlers.BatchResult{99: nil},
			"a result for task 9223372036854775": fmt.Errorf("send: %w", handlers.BatchResult{math.MaxInt64: handlers.Discard(errBusy)}),
			"joined with another error":          errors.Join(handlers.BatchResult{1: errBusy}, io.EOF),
			"does not tell which tasks are done": errors.Join(handlers.BatchResult{1: errBusy}, handlers.BatchResult{2: errBusy}),
			"so it does not tell":                errors.Join(handlers.BatchResult{1: errBusy}, handlers.Discard(errBusy)),
		} {
			got := batch(t, func(context.Context, *sql.Tx, []*outbox.Task[mail]) error { return result }, payloads...)
			if handlers.ActionOf(got) != handlers.ActionRetry || errors.As(got, new(handlers.BatchResult)) {
				t.Errorf("%v of %q became %v", result, payloads, got)
			}
			wantText(t, fmt.Sprint(got), want)
		}
	}
}

func TestWaitsAreCutToWhatATimestampCanHold(t *testing.T) {
	const least, most = 100 * time.Millisecond, 100 * 365 * 24 * time.Hour
	for d, want := range map[time.Duration]time.Duration{-time.Hour: least, 0: least, 1: least, time.Hour: time.Hour,
		math.MaxInt64: most, math.MinInt64: least} {
		for _, err := range []error{handlers.Snooze(d), handlers.SnoozeWith(d, errBusy)} {
			if got := handler.ResultOf(err).Wait; got != want {
				t.Errorf("Snooze(%v): got %v, want %v", d, got, want)
			}
		}
		if got := handler.ResultOf(handlers.RetryAfter(d, errBusy)); d > 0 && (got.Wait != want ||
			got.Action != handler.ActionRetryAfter) {
			t.Errorf("RetryAfter(%v): got action %d, wait %v, want %v", d, got.Action, got.Wait, want)
		}
		if err := handlers.RetryAfter(d, errBusy); d <= 0 && err != errBusy {
			t.Errorf("RetryAfter(%v): got %v, want the error as it is", d, err)
		}
	}
}

func TestTheTextOfResults(t *testing.T) {
	for want, err := range map[string]error{
		"snooze after 1m0s":                 handlers.Snooze(time.Minute),
		"snooze after 1m0s: busy":           handlers.SnoozeWith(time.Minute, errBusy),
		"run again after 1m0s":              handlers.RunAgain(time.Minute),
		"retry after 1m0s: busy":            handlers.RetryAfter(time.Minute, errBusy),
		"retry after 1m0s":                  handlers.RetryAfter(time.Minute, nil),
		"handlers: Dead was given no error": handlers.Dead(nil),
		"handlers: RetryAfter was given neither a wait nor an error": handlers.RetryAfter(0, nil),
		"busy":                            handlers.Dead(errBusy),
		"send: busy":                      fmt.Errorf("send: %w", handlers.Dead(errBusy)),
		"gone: busy":                      fmt.Errorf("gone: %w", handlers.Discard(errBusy)),
		"task 5: busy":                    handlers.BatchResult{5: errBusy},
		"task 5: busy (and 2 more)":       handlers.BatchResult{7: io.EOF, 6: handlers.RunAgain(0), 5: errBusy, 4: nil},
		"all tasks of the batch are done": handlers.BatchResult{5: nil},
	} {
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}

// errors.Is and errors.As find members; what a member asks for is for its own task alone.
func TestMembersOfABatchResultAreFoundAsErrorsAndNotAsItsResult(t *testing.T) {
	result := handlers.BatchResult{9: handlers.RunAgain(0), 3: handlers.Discard(errBusy), 5: nil, 1: io.EOF, 7: &handlers.PanicError{}}
	for range 10 {
		if got, want := result.Unwrap(), []error{io.EOF, result[3], result[7], result[9]}; !slices.Equal(got, want) {
			t.Fatalf("Unwrap: %v, want %v", got, want)
		}
	}
	for _, err := range []error{result, fmt.Errorf("publish: %w", result), errors.Join(errors.New("first"), result)} {
		if !errors.Is(err, errBusy) || !errors.Is(err, io.EOF) || !errors.As(err, new(*handlers.PanicError)) {
			t.Errorf("%v: errors.Is and errors.As do not find its members", err)
		}
		if got := handlers.ActionOf(err); got != handlers.ActionRetry {
			t.Errorf("%v: the action is %q, want that of an error", err, got)
		}
	}
	// From a handler of another kind it is an error like any other.
	err := leased(t, `{}`, func(context.Context, *outbox.Task[mail]) error { return handlers.BatchResult{1: handlers.Snooze(1)} })
	if got := handler.ResultOf(err); got.Action != handler.ActionRetry || got.Err == nil {
		t.Errorf("a Leased handler's: %+v, want a plain failure", got)
	}
	// Middleware may return one, wrap it, or return one without members.
	for _, c := range []struct {
		from error
		want string
	}{
		{handlers.BatchResult{2: errBusy}, "map[2:busy]"},
		{fmt.Errorf("wrapped: %w", handlers.BatchResult{2: errBusy, 1: nil}), "map[2:busy]"},
		{handlers.BatchResult{1: nil}, "<nil>"},
		{handlers.BatchResult(nil), "<nil>"},
		{handlers.BatchResult{1: nil, 3: nil}, ""}, // an error for all
		{handlers.Dead(handlers.BatchResult{2: errBusy}), ""},
		{handlers.BatchResult{2: handlers.RunAgainWith(&outbox.Task[mail]{ID: 1, Type: "SEND_MAIL"}, 0, mail{})},
			"map[2:handlers: RunAgainWith: its payload is for task 1, not for task 2]"},
	} {
		r := handlers.New()
		handlers.Batch(r, sendMail, 10, nothingBatch, handlers.Use(func(handlers.Func) handlers.Func {
			return func(context.Context, *handlers.Call) error { return c.from }
		}))
		err := call(t, r, handler.Claim{}, `{}`, `{}`)
		some, _ := err.(handlers.BatchResult)
		if c.want == "" {
			if err == nil || some != nil {
				t.Errorf("%v became %v", c.from, err)
			}
			continue
		}
		if got := fmt.Sprint(map[int64]error(some)); err == nil && c.want != "<nil>" || err != nil && got != c.want {
			t.Errorf("%v became %v, want %s", c.from, err, c.want)
		}
	}
}

func TestTheResultOfABatch(t *testing.T) {
	const good, bad = `{"To": "a"}`, `{"To": 1}`
	// undecodable marks tasks that fail since they do not decode.
	undecodable := errors.New("does not decode")
	all := errors.New("for all")
	for _, c := range []struct {
		name     string
		payloads []string
		result   error
		want     map[int64]error // nil: the result is for all
		wantAll  error
	}{
		{"all good, nil", []string{good, good}, nil, nil, nil},
		{"all good, an error", []string{good, good}, all, nil, all},
		{"all good, some fail", []string{good, good}, handlers.BatchResult{2: errBusy}, map[int64]error{2: errBusy}, nil},
		{"wrapped", []string{good, good}, fmt.Errorf("send: %w", handlers.BatchResult{2: errBusy}),
			map[int64]error{2: errBusy}, nil},
		{"nil entries are done", []string{good, good}, handlers.BatchResult{1: nil, 2: errBusy}, map[int64]error{2: errBusy},
			nil},
		{"only nil entries", []string{good, good}, handlers.BatchResult{1: nil}, nil, nil},
		{"no entries", []string{good, good}, handlers.BatchResult{}, nil, nil},
		{"one bad, nil", []string{good, bad, good}, nil, map[int64]error{2: undecodable}, nil},
		{"one bad, another fails", []string{good, bad, good}, handlers.BatchResult{3: errBusy},
			map[int64]error{2: undecodable, 3: errBusy}, nil},
		{"one bad, an error", []string{good, bad, good}, all, nil, all},
		{"one bad, nil entry for it", []string{good, bad}, handlers.BatchResult{2: nil}, map[int64]error{2: undecodable}, nil},
		{"all bad", []string{bad, bad}, nil, map[int64]error{1: undecodable, 2: undecodable}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := batch(t, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[mail]) error {
				for _, task := range tasks {
					if task.Payload.To != "a" {
						t.Errorf("it got task %d, which does not decode", task.ID)
					}
				}
				if c.name == "all bad" {
					t.Error("it was called with no task")
				}
				return c.result
			}, c.payloads...)
			var got handlers.BatchResult
			if !errors.As(err, &got) {
				if len(c.want) > 0 || !errors.Is(err, c.wantAll) || (err == nil) != (c.wantAll == nil) {
					t.Errorf("got %v, want %v or %v", err, c.want, c.wantAll)
				}
				return
			}
			if len(got) != len(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			for id, want := range c.want {
				if want == undecodable {
					wantText(t, fmt.Sprint(got[id]), "the payload does not decode")
				} else if !errors.Is(got[id], want) {
					t.Errorf("task %d: got %v, want %v", id, got[id], want)
				}
			}
		})
	}
}

// Discard for all would finish tasks that the handler has never seen.
func TestAControlResultDoesNotHoldForTasksThatDoNotDecode(t *testing.T) {
	for _, result := range []error{handlers.Discard(errBusy), handlers.Dead(errBusy), handlers.Snooze(time.Hour),
		handlers.RetryAfter(time.Hour, errBusy)} {
		h := func(context.Context, *sql.Tx, []*outbox.Task[mail]) error { return fmt.Errorf("publish: %w", result) }
		want := handler.ResultOf(result)
		if got := handler.ResultOf(batch(t, h, `{}`, `{}`)); got.Action != want.Action || got.Wait != want.Wait {
			t.Errorf("%v: got action %d, want %d", result, got.Action, want.Action)
		}
		err := batch(t, h, `{}`, `{"To": 1}`)
		if got := handler.ResultOf(err); got.Action != handler.ActionRetry || got.Wait != 0 ||
			errors.As(err, new(handlers.BatchResult)) {
			t.Errorf("%v: got %v, want a plain failure of the batch", result, err)
		}
		wantText(t, fmt.Sprint(err), "1 of the batch's tasks do not decode", result.Error())
	}
}
