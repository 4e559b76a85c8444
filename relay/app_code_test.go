package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// misbehaving is how the app's code does not return: "panic" or "Goexit".
type misbehaving string

func (m misbehaving) now() {
	if m == "Goexit" {
		runtime.Goexit()
	}
	panic("oops")
}

// badPayload is a payload whose methods misbehave as its JSON says.
type badPayload struct{ how misbehaving }

func (p badPayload) MarshalJSON() ([]byte, error) { p.how.now(); return nil, nil }

func (p *badPayload) UnmarshalJSON(b []byte) error {
	if p.how = misbehaving(strings.Trim(string(b), `"`)); p.how != "fine" {
		p.how.now()
	}
	return nil
}

// badMethod is an error of which one method misbehaves.
type badMethod struct {
	name string
	how  misbehaving
}

func (e badMethod) called(name string) {
	if e.name == name {
		e.how.now()
	}
}
func (e badMethod) Error() string    { e.called("Error"); return "it said so" }
func (e badMethod) Unwrap() error    { e.called("Unwrap"); return nil }
func (e badMethod) Is(error) bool    { e.called("Is"); return false }
func (e badMethod) As(any) bool      { e.called("As"); return false }
func (e badMethod) SQLState() string { e.called("SQLState"); return "" }

// badLog keeps a record and then misbehaves.
type badLog struct {
	slog.Handler
	how misbehaving
}

func (l badLog) Handle(ctx context.Context, r slog.Record) error {
	_ = l.Handler.Handle(ctx, r)
	l.how.now()
	return nil
}

// appCode is code of the app's that misbehaves whenever a task of its type runs.
type appCode struct {
	do      func(ctx context.Context, tx *sql.Tx) error // what the handler does
	opts    []handlers.Option
	payload string // "fine" if it is empty
	some    bool   // a Batch handler returns do's error for each task
	text    string // in last_error; "" is that of the panic or Goexit
	panics  bool   // the failure is a PanicError
	value   error  // of the panic
}

func appCodes(how misbehaving) map[string]appCode {
	returns := func(err error) func(context.Context, *sql.Tx) error {
		return func(context.Context, *sql.Tx) error { return err }
	}
	does := func(f func()) func(context.Context, *sql.Tx) error {
		return func(context.Context, *sql.Tx) error { f(); return nil }
	}
	wraps := handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, c *handlers.Call) error { return fmt.Errorf("wrapped: %w", next(ctx, c)) }
	})
	log := slog.New(badLog{slog.NewTextHandler(&records{}, &slog.HandlerOptions{Level: slog.LevelDebug}), how})
	var factories atomic.Int64
	codes := map[string]appCode{
		"HANDLER":     {do: does(how.now), panics: true},
		"WRAPPED":     {do: does(how.now), opts: []handlers.Option{wraps}, panics: true},
		"PANIC_VALUE": {do: does(func() { panic(badMethod{"Error", how}) })},
		"PANIC_RESULT": {do: does(func() { panic(handlers.Discard(errMisdeed)) }), opts: []handlers.Option{wraps},
			text: "misdeed", panics: true, value: errMisdeed},
		"PANIC_BATCH_RESULT": {do: does(func() { panic(handlers.BatchResult{0: errMisdeed}) }), text: "misdeed"},
		"MIDDLEWARE": {do: returns(nil), panics: true,
			opts: []handlers.Option{handlers.Use(func(handlers.Func) handlers.Func {
				return func(context.Context, *handlers.Call) error { how.now(); return nil }
			})}},
		"LOGGER":    {do: returns(handlers.Snooze(0)), opts: []handlers.Option{handlers.Use(handlers.Log(log))}},
		"UNMARSHAL": {do: returns(nil), payload: string(how)},
		"MARSHAL": {do: func(ctx context.Context, tx *sql.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, "OTHER", badPayload{how})
			return err
		}},
		"BACKOFF": {do: returns(errMisdeed), text: "misdeed",
			opts: []handlers.Option{handlers.Backoff(func(int, error) (time.Duration, bool) { how.now(); return 0, false })}},
		"BACKOFF_FACTORY": {do: returns(errMisdeed), text: "misdeed",
			opts: []handlers.Option{handlers.Backoff(handlers.GoRetry(func() retry.Backoff {
				if factories.Add(1) > 1 { // GoRetry makes one
					how.now()
				}
				return retry.NewConstant(time.Hour)
			}))}},
		"RETRY_AFTER":  {do: returns(handlers.RetryAfter(100*time.Hour, badMethod{"Error", how}))}, // counts after three days
		"BATCH_RESULT": {do: returns(badMethod{"Error", how}), some: true},
	}
	for _, method := range []string{"Error", "Unwrap", "Is", "As", "SQLState"} {
		codes["ERROR_"+strings.ToUpper(method)] = appCode{do: returns(errors.Join(badMethod{method, how}))}
	}
	return codes
}

// registerAppCodes registers a handler of each kind for each of the codes, and returns the types.
func registerAppCodes(reg *handlers.Registry, codes map[string]appCode) (types map[string]appCode) {
	types = map[string]appCode{}
	for name, c := range codes {
		for _, kind := range []string{"tx", "batch", "complete"} {
			types[name+" "+kind] = c
			handle := func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[badPayload]) error {
				err := c.do(ctx, tx)
				if !c.some || kind != "batch" {
					return err
				}
				some := handlers.BatchResult{}
				for _, task := range tasks {
					some[task.ID] = err
				}
				return some
			}
			relaytest.Register(reg, kind, name+" "+kind, 10, handle, append(c.opts, handlers.MaxAttempts(2))...)
		}
	}
	return types
}

// Whatever code of the app's panics or ends its goroutine, each task has its two attempts and is a
// dead letter then; and all the rest goes on. The place of a panic reaches the row and the log, and
// its stack and value reach the log, observers and OnDead.
func TestAppCodeMayPanicOrEndItsGoroutine(t *testing.T) {
	t.Parallel()
	for how, said := range map[misbehaving]string{"panic": "oops", "Goexit": "runtime.Goexit"} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			db, reg := newDatabase(t), handlers.New()
			types := registerAppCodes(reg, appCodes(how))
			registerTx(reg, typeTx, txEffect)
			for name, c := range types {
				payload := c.payload
				if payload == "" {
					payload = "fine"
				}
				db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, to_jsonb($2::text) FROM generate_series(1, 2)`,
					name, payload)
			}
			db.Enqueue(t, "TX", 5)
			var mu sync.Mutex
			told := map[string]int{} // failures, to OnDead
			look := func(taskType string, err error) {
				mu.Lock()
				defer mu.Unlock()
				told[taskType]++
				var p *handlers.PanicError
				c := types[taskType]
				if c.panics && (!errors.As(err, &p) || len(p.Stack) == 0 || c.value != nil &&
					!errors.Is(err, c.value)) {
					t.Errorf("%s: %v is no PanicError with a stack and %v", taskType, err, c.value)
				}
			}
			h, log := &heard{}, &records{}
			r, err := relay.New(db.DB, reg, relay.Config{
				OnDead: func(_ context.Context, d relay.DeadLetter) { look(d.Type, d.Err); how.now() },
				Observers: append([]relay.Observer{{Claimed: func(context.Context, relay.Claim) { how.now() },
					Ended: func(context.Context, relay.RunEnd) { how.now() }, Changed: func(context.Context, relay.Change) { how.now() }}},
					h.observers()...),
				WorkersByType: func(context.Context, relay.Load) map[string]int { how.now(); return nil },
				Logger:        slog.New(badLog{slog.NewTextHandler(log, nil), how}),
			})
			if err != nil {
				t.Fatal(err)
			}
			for db.Int(t, `SELECT count(*) FROM outbox.task`) > 0 {
				db.Do(t, `UPDATE outbox.task SET run_at = now(),
					timeline = jsonb_set(timeline, '{0,at}', '"2020-01-01T00:00:00Z"') WHERE state = 'scheduled'`)
				if err := r.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			const place = ", relay/app_code_test.go:"
			outcomes := h.outcomes()
			for name, c := range types {
				text := c.text
				if text == "" {
					text = said
					db.wantRows(t, 2, `outbox.dead_task WHERE task_type = $1 AND position($2 IN last_error) > 0`, name,
						place)
				}
				db.want(t, 2, name+": dead letters after 2 attempts", `SELECT count(*) FILTER (WHERE attempt = 2
					AND reason = 'attempts' AND position($2 IN last_error) > 0) FROM outbox.dead_task WHERE task_type = $1`, name, text)
				if got := outcomes[name]; strings.Count(got, "failed") != 2 || strings.Count(got, "dead") != 2 ||
					told[name] != 2 {
					t.Errorf("%s: observers heard %s, and OnDead of %d", name, got, told[name])
				}
			}
			db.wantRows(t, 5, `effect`)
			h.balanced(t)
			for _, want := range []string{"Backoff panicked", "OnDead panicked", "an observer panicked",
				"Config.WorkersByType panicked"} {
				if log.Count(want) == 0 {
					t.Errorf("no record with %q", want)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, want) &&
						(!strings.Contains(line, place) || !strings.Contains(line, " stack=")) {
						t.Errorf("no place or no stack in %s", line)
					}
				}
			}
		})
	}
}
