package handlers_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// registered are handlers of all kinds with the same options.
func registered(t *testing.T, opts ...handlers.Option) map[outbox.Kind]*handler.Handler {
	t.Helper()
	tx, batch, leased := handlers.New(), handlers.New(), handlers.New()
	handlers.Tx(tx, sendMail, nothing, opts...)
	handlers.Batch(batch, sendMail, 500, nothingBatch, opts...)
	handlers.Leased(leased, sendMail, nothingLeased, opts...)
	return map[outbox.Kind]*handler.Handler{
		outbox.KindTx: only(t, tx), outbox.KindBatch: only(t, batch), outbox.KindLeased: only(t, leased),
	}
}

func TestOptionsAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		opts   []handlers.Option
		change func(h *handler.Handler) // of the defaults
	}{
		"no options": {nil, func(*handler.Handler) {}},
		"zero options": {[]handlers.Option{handlers.Timeout(0), handlers.MaxAttempts(0), handlers.Priority(0),
			handlers.Use(), handlers.MaxRunningPerRelay(0), handlers.MaxRunning(0), handlers.MaxRunningPerKey(0),
			handlers.Rate(0, 0)},
			func(*handler.Handler) {}},
		"the greatest": {[]handlers.Option{handlers.Timeout(time.Second), handlers.MaxAttempts(32767),
			handlers.Priority(-32768), handlers.MaxRunningPerRelay(2000), handlers.MaxRunning(1000),
			handlers.MaxRunningPerKey(100),
			handlers.Rate(100_000, time.Second)}, func(h *handler.Handler) {
			h.Timeout, h.MaxAttempts, h.Priority, h.MaxRunningPerRelay = time.Second, 32767, -32768, 2000
			h.MaxRunning, h.MaxRunningPerKey, h.Rate, h.RatePer = 1000, 100, 100_000, time.Second
		}},
		"a time in place of a number of attempts": {[]handlers.Option{handlers.MaxElapsed(time.Hour)},
			func(h *handler.Handler) { h.MaxElapsed, h.MaxAttempts = time.Hour, math.MaxInt16 }},
		"both": {[]handlers.Option{handlers.MaxElapsed(time.Hour), handlers.MaxAttempts(5)},
			func(h *handler.Handler) { h.MaxElapsed, h.MaxAttempts = time.Hour, 5 }},
	} {
		for kind, got := range registered(t, c.opts...) {
			want := handler.Handler{Type: "SEND_MAIL", Kind: kind, BatchSize: 1, GroupWithin: 20 * time.Millisecond,
				Timeout: 30 * time.Second, MaxAttempts: 20}
			switch kind {
			case outbox.KindBatch:
				want.BatchSize = 500
			case outbox.KindLeased:
				want.Timeout = 5 * time.Minute
			}
			c.change(&want)
			if got.Run, got.Schedule, got.Options = nil, nil, nil; !reflect.DeepEqual(*got, want) {
				t.Errorf("%s: got %+v, want %+v", name, *got, want)
			}
		}
	}
	for _, c := range []struct {
		opt            handlers.Option
		timeout, lease time.Duration
	}{{handlers.Timeout(-1), 0, 0}, {handlers.NoHeartbeat(time.Minute), 0, time.Minute},
		{handlers.Timeout(48 * time.Hour), 48 * time.Hour, 0}} {
		r := handlers.New()
		handlers.Leased(r, sendMail, nothingLeased, c.opt)
		if got := only(t, r); got.Timeout != c.timeout || got.Lease != c.lease {
			t.Errorf("got timeout %v and lease %v, want %v and %v", got.Timeout, got.Lease, c.timeout, c.lease)
		}
	}
	r := handlers.New(handlers.Timeout(time.Second)) // the lease is in its place, if the registration says so
	handlers.Leased(r, sendMail, nothingLeased, handlers.NoHeartbeat(time.Minute), handlers.Timeout(0))
	if got := only(t, r); got.Timeout != 0 || got.Lease != time.Minute {
		t.Errorf("with a default: got timeout %v and lease %v, want 0 and 1m", got.Timeout, got.Lease)
	}
}

func TestEachOptionOutOfRangeIsNamed(t *testing.T) {
	for _, c := range []struct {
		want string
		opt  handlers.Option
	}{
		{"an Option is nil", nil},
		{"Timeout(30.001s): a tx handler holds a transaction open, so it must be between 1ms and 30s: use Leased for longer work", handlers.Timeout(30001 * time.Millisecond)},
		{"Timeout(999µs): a tx", handlers.Timeout(999 * time.Microsecond)},
		{"Timeout(-1s): a tx", handlers.Timeout(-time.Second)},
		{"MaxAttempts(-1): must be between 1 and 32767, or 0 for 20", handlers.MaxAttempts(-1)},
		{"MaxAttempts(32768): must be", handlers.MaxAttempts(32768)},
		{"MaxElapsed(-1s): must be positive, or 0 for any time", handlers.MaxElapsed(-time.Second)},
		{"Priority(32768): must be between -32768 and 32767", handlers.Priority(32768)},
		{"Priority(-32769): must be", handlers.Priority(-32769)},
		{"MaxRunningPerRelay(-1): must be at least 1, or 0 for any number", handlers.MaxRunningPerRelay(-1)},
		{"MaxRunning(-1): must be between 1 and 1000, or 0", handlers.MaxRunning(-1)},
		{"MaxRunning(1001): must be", handlers.MaxRunning(1001)},
		{"MaxRunningPerKey(-1): must be between 1 and 100, or 0", handlers.MaxRunningPerKey(-1)},
		{"MaxRunningPerKey(101): must be", handlers.MaxRunningPerKey(101)},
		{"Rate(0, 1s): must be between 1 and 1000000 tasks in 1ms to 744h0m0s, at most 100,000 a second, or 0 in 0",
			handlers.Rate(0, time.Second)},
		{"Rate(1, 0s): must be", handlers.Rate(1, 0)},
		{"Rate(-1, 1s): must be", handlers.Rate(-1, time.Second)},
		{"Rate(1000001, 1h0m0s): must be", handlers.Rate(1_000_001, time.Hour)},
		{"Rate(100001, 1s): must be", handlers.Rate(100_001, time.Second)},
		{"Rate(1, 745h0m0s): must be", handlers.Rate(1, 745*time.Hour)},
		{"Backoff: the schedule is nil", handlers.Backoff(nil)},
		{"GroupCommit(-1, 0s): must be between 1 and 1000 tasks, or 0 for one, and within at most 1s, or 0 for 20ms",
			handlers.GroupCommit(-1, 0)},
		{"GroupCommit(1001, 0s): must be", handlers.GroupCommit(1001, 0)},
		{"GroupCommit(32, 1.001s): must be", handlers.GroupCommit(32, 1001*time.Millisecond)},
		{"GroupCommit(32, -1ns): must be", handlers.GroupCommit(32, -1)},
		{"Use: a Middleware is nil", handlers.Use(nil)},
	} {
		got := panics(t, func() { handlers.Tx(handlers.New(), sendMail, nothing, c.opt) })
		wantText(t, got, "handlers: SEND_MAIL: "+c.want)
	}
	for _, c := range []struct {
		kind, want string
		opts       []handlers.Option
	}{
		{"batch", "Timeout(1m0s): a batch handler holds", []handlers.Option{handlers.Timeout(time.Minute)}},
		{"batch", "GroupCommit: a batch handler has none: it is for Tx", []handlers.Option{handlers.GroupCommit(2, 0)}},
		{"tx", "NoHeartbeat: a tx handler has no", []handlers.Option{handlers.NoHeartbeat(time.Minute)}},
		{"leased", "NoHeartbeat(0s): must be between 100ms and 576h0m0s", []handlers.Option{handlers.NoHeartbeat(0)}},
		{"leased", "NoHeartbeat(576h0m1s): must be",
			[]handlers.Option{handlers.NoHeartbeat(outbox.MaxTimeout + time.Second)}},
		{"leased", "NoHeartbeat and Timeout(1s): the lease is the timeout; Timeout(0) takes a default back",
			[]handlers.Option{handlers.NoHeartbeat(time.Minute), handlers.Timeout(time.Second)}},
	} {
		wantText(t, panics(t, func() { relaytest.Register(handlers.New(), c.kind, "T", 1, nothingBatch, c.opts...) }), c.want)
	}
	wantText(t, panics(t, func() { handlers.Batch(handlers.New(), sendMail, 10_001, nothingBatch) }),
		"size 10001: must be between 1 and 10000")
	// All at once.
	wantText(t, panics(t, func() {
		handlers.Batch(handlers.New(), sendMail, 0, nothingBatch, handlers.MaxAttempts(-1), handlers.Priority(1e6),
			handlers.Timeout(time.Hour))
	}), "size 0", "MaxAttempts(-1)", "Priority(1000000)", "Timeout(1h0m0s)")
}

// The table of docs/guide/retries.md.
func TestTheDefaultScheduleIsAsDocumented(t *testing.T) {
	docs, err := os.ReadFile("../docs/guide/retries.md")
	must(err)
	h := registered(t, handlers.NoJitter())[outbox.KindTx]
	round := func(d time.Duration) string {
		for _, unit := range []struct {
			of   time.Duration
			name string
		}{{time.Hour, "h"}, {time.Minute, "min"}} {
			if d >= 2*unit.of {
				return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(d)/float64(unit.of)), ".0") + " " + unit.name
			}
		}
		return fmt.Sprintf("%d s", d/time.Second)
	}
	table, sum := "| attempt | wait before it | since the first failure |\n|---|---|---|\n", time.Duration(0)
	for n := 1; n < h.MaxAttempts; n++ {
		wait, again, err := h.Backoff(n, nil)
		if err != nil || !again {
			t.Fatalf("after %d attempts: %v, %v", n, again, err)
		}
		sum += wait
		if n <= 10 || n == h.MaxAttempts-1 {
			table += fmt.Sprintf("| %d | %s | %s |\n", n+1, round(wait), round(sum))
		} else if n == 11 {
			table += fmt.Sprintf("| 12 to %d | %s each | |\n", h.MaxAttempts-1, round(wait))
		}
	}
	t.Log("\n" + table)
	if !strings.Contains(string(docs), table) {
		t.Errorf("docs/guide/retries.md does not have\n%s", table)
	}
}

// Tasks that failed together are not due together.
func TestWaitsAreSpreadByATenth(t *testing.T) {
	constant := handlers.Backoff(relaytest.Constant(time.Hour))
	for name, c := range map[string]struct {
		opts      []handlers.Option
		attempts  int
		want      time.Duration
		different bool
	}{
		"the default":            {nil, 5, 81 * time.Second, true},
		"the default, long":      {nil, 32767, 7 * time.Hour, true},
		"of the app":             {[]handlers.Option{constant}, 5, time.Hour, true},
		"of the app, as it says": {[]handlers.Option{constant, handlers.NoJitter()}, 5, time.Hour, false},
	} {
		h, different := registered(t, c.opts...)[outbox.KindTx], map[time.Duration]bool{}
		for range 100 {
			wait, again, err := h.Backoff(c.attempts, nil)
			if err != nil || !again || (wait-c.want).Abs() > c.want/10+1 {
				t.Fatalf("%s: got %v, %v, %v, want about %v", name, wait, again, err, c.want)
			}
			different[wait] = true
		}
		if (len(different) > 50) != c.different || !c.different && len(different) != 1 {
			t.Errorf("%s: %d different waits of 100", name, len(different))
		}
	}
}

// The app's schedule gets the attempt and the handler's error.
func TestABackoffOfTheApp(t *testing.T) {
	schedule := func(attempt int, err error) (time.Duration, bool) {
		if errors.Is(err, errBusy) {
			return time.Duration(attempt) * time.Hour, true
		}
		return time.Hour, false
	}
	for _, c := range []struct {
		name     string
		schedule func(int, error) (time.Duration, bool)
		attempt  int
		err      error
		want     time.Duration
		again    bool
	}{
		{"the first", schedule, 1, errBusy, time.Hour, true},
		{"the second", schedule, 2, errBusy, 2 * time.Hour, true},
		{"at most 24 h", schedule, 25, errBusy, 24 * time.Hour, true},
		{"no more", schedule, 1, io.EOF, 0, false},
		{"not negative", relaytest.Constant(-time.Hour), 1, nil, 0, true},
	} {
		h := registered(t, handlers.Backoff(c.schedule), handlers.NoJitter())[outbox.KindTx]
		if wait, again, err := h.Backoff(c.attempt, c.err); err != nil || wait != c.want || again != c.again {
			t.Errorf("%s: got %v, %v, want %v, %v", c.name, wait, again, c.want, c.again)
		}
	}
}

func TestABackoffOfGoRetry(t *testing.T) {
	values := func(list ...time.Duration) func() retry.Backoff {
		return func() retry.Backoff {
			i := 0
			return retry.BackoffFunc(func() (time.Duration, bool) {
				if i == len(list) {
					return 0, true
				}
				i++
				return list[i-1], false
			})
		}
	}
	exponential := func() retry.Backoff { return retry.NewExponential(time.Second) }
	for _, c := range []struct {
		name    string
		factory func() retry.Backoff
		attempt int
		want    time.Duration
		again   bool
	}{
		{"the first value", values(3, 1, 4), 1, 3, true},
		{"the second value", values(3, 1, 4), 2, 1, true},
		{"the third value", values(3, 1, 4), 3, 4, true},
		{"no value is left", values(3, 1, 4), 4, 0, false},
		{"long after the stop", values(3, 1, 4), 32767, 0, false},
		{"no cap", exponential, 310, 24 * time.Hour, true},
		{"no cap, the most attempts", exponential, 32767, 24 * time.Hour, true},
	} {
		h := registered(t, handlers.Backoff(handlers.GoRetry(c.factory)), handlers.NoJitter())[outbox.KindTx]
		for range 2 { // from the beginning each time
			if wait, again, err := h.Backoff(c.attempt, nil); err != nil || wait != c.want || again != c.again {
				t.Errorf("%s: got %v, %v, want %v, %v", c.name, wait, again, c.want, c.again)
			}
		}
	}
	const isNil = "handlers: GoRetry: the factory is nil, or returns nil"
	wantText(t, panics(t, func() { handlers.GoRetry[retry.Backoff](nil) }), isNil)
	wantText(t, panics(t, func() { handlers.GoRetry(func() retry.Backoff { return nil }) }), isNil)
}
