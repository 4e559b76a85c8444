package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
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
	do      func(ctx context.Context, tx outbox.Tx) error // what the handler does
	opts    []handlers.Option
	payload string // "fine" if it is empty
	batch   bool   // a Batch handler returns do's error for each task
	text    string // in last_error; "" is that of the panic or Goexit
	backoff bool   // the default backoff takes its place, and a record names it
}

func appCodes(how misbehaving) map[string]appCode {
	fails := func(err error) func(context.Context, outbox.Tx) error {
		return func(context.Context, outbox.Tx) error { return err }
	}
	var factories atomic.Int64
	codes := map[string]appCode{
		"HANDLER":     {do: func(context.Context, outbox.Tx) error { how.now(); return nil }},
		"PANIC_VALUE": {do: func(context.Context, outbox.Tx) error { panic(badMethod{"Error", how}) }},
		"MIDDLEWARE": {do: fails(nil), opts: []handlers.Option{handlers.Use(func(handlers.Func) handlers.Func {
			return func(context.Context, *handlers.Call) error { how.now(); return nil }
		})}},
		"LOGGER": {do: fails(handlers.Snooze(0)),
			opts: []handlers.Option{handlers.Use(handlers.Log(slog.New(badLog{slog.NewTextHandler(&records{},
				&slog.HandlerOptions{Level: slog.LevelDebug}), how})))}},
		"UNMARSHAL": {do: fails(nil), payload: string(how)},
		"MARSHAL": {do: func(ctx context.Context, tx outbox.Tx) error {
			_, err := outbox.Enqueue(ctx, tx, "OTHER", badPayload{how})
			return err
		}},
		"BACKOFF": {do: fails(errMisdeed), text: "misdeed", backoff: true,
			opts: []handlers.Option{handlers.Backoff(func() retry.Backoff {
				return retry.BackoffFunc(func() (time.Duration, bool) { how.now(); return 0, true })
			})}},
		"BACKOFF_FACTORY": {do: fails(errMisdeed), text: "misdeed", backoff: true,
			opts: []handlers.Option{handlers.Backoff(func() retry.Backoff {
				if factories.Add(1) > 3 { // registration makes one for each kind of handler
					how.now()
				}
				return retry.NewConstant(time.Hour)
			})}},
		"RETRY_AFTER": {do: fails(handlers.RetryAfter(100*time.Hour, badMethod{"Error", how}))}, // which counts
		"BATCH_ERROR": {do: fails(badMethod{"Error", how}), batch: true},
	}
	for _, method := range []string{"Error", "Unwrap", "Is", "As", "SQLState"} {
		codes["ERROR_"+strings.ToUpper(method)] = appCode{do: fails(errors.Join(badMethod{method, how}))}
	}
	return codes
}

// registerAppCodes registers a handler of each kind for each of the codes, and returns the types.
func registerAppCodes(reg *handlers.Registry, codes map[string]appCode) (types map[string]appCode) {
	types = map[string]appCode{}
	for name, c := range codes {
		opts := append(c.opts, handlers.MaxAttempts(2))
		for _, kind := range []string{"tx", "batch", "complete"} {
			types[name+" "+kind] = c
			relaytest.Register(reg,
				kind, name+" "+kind, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[badPayload]) error {
					err := c.do(ctx, tx)
					if !c.batch || kind != "batch" {
						return err
					}
					some := handlers.BatchError{}
					for _, task := range tasks {
						some[task.ID] = err
					}
					return some
				}, opts...)
		}
	}
	return types
}

// Whatever code of the app's panics or ends its goroutine, each task has its two attempts and is a
// dead letter then, with the same text from a relay of any kind and from Drain; and all the rest
// goes on.
func TestAppCodeMayPanicOrEndItsGoroutine(t *testing.T) {
	t.Parallel()
	for how, said := range map[misbehaving]string{"panic": "oops", "Goexit": "runtime.Goexit"} {
		t.Run(string(how), func(t *testing.T) {
			if how == "Goexit" {
				needs.Long(t)
			}
			t.Parallel()
			reg := handlers.New()
			types := registerAppCodes(reg, appCodes(how))
			registerTx(reg, typeTx, txEffect)
			begin := func() *database {
				db := newDatabase(t)
				for name, c := range types {
					payload := c.payload
					if payload == "" {
						payload = "fine"
					}
					db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, to_jsonb($2::text) FROM generate_series(1, 2)`,
						name, payload)
				}
				db.Enqueue(t, "TX", 5)
				return db
			}
			const place = ", relay/app_code_test.go:"
			check := func(db *database) {
				t.Helper()
				for name, c := range types {
					want := c.text
					if want == "" {
						want = said
						db.wantRows(t, 2, `outbox.dead_task WHERE task_type = $1 AND position($2 IN last_error) > 0`, name, place)
					}
					got := db.Text(t, `SELECT count(*) FILTER (WHERE attempt = 2 AND reason = 'attempts'
						AND position($2 IN last_error) > 0) || ' ' || count(*) || ' ' || min(last_error)
						  FROM outbox.dead_task WHERE task_type = $1`, name, want)
					if !strings.HasPrefix(got, "2 2 ") {
						t.Errorf("%s: %s; want 2 of 2 dead letters after 2 attempts, with %q", name, got, want)
					}
				}
				db.wantRows(t, 5, `effect`)
			}

			db := begin()
			h, log := &heard{}, &records{}
			var told atomic.Int64
			var armed atomic.Bool
			timing := func(bad func(time.Time) bool) relay.Timing {
				return nextFunc(func(at time.Time) time.Time {
					if armed.Load() && bad(at) {
						how.now()
					}
					return relay.Every(yearly).Next(at)
				})
			}
			long := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
			armed.Store(false) // else New refuses the schedules
			config := scheduled(relay.Schedule{Name: "good", Timing: relay.Every(yearly)},
				relay.Schedule{Name: "bad as it fires", Timing: timing(long.Equal)},
				relay.Schedule{Name: "bad as it is added", Timing: timing(func(at time.Time) bool { return !at.Equal(long) })})
			config.Observers = append([]relay.Observer{{Claimed: func(relay.Claim) { how.now() },
				Ended: func(relay.RunEnd) { how.now() }, Changed: func(relay.Change) { how.now() }}}, h.observers()...)
			config.OnDead = func(context.Context, relay.DeadLetter) { told.Add(1); how.now() }
			config.Chooser = chooserFunc(func(relay.View) []int { how.now(); return nil })
			config.Logger = slog.New(badLog{slog.NewTextHandler(log, nil), how})
			r, err := relay.New(db.DB, reg, config)
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			runOnce := func() {
				t.Helper()
				if err := r.RunOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			runOnce()
			db.Do(t, `UPDATE outbox.schedule SET next_at = $1`, long)
			runOnce()
			for db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type <> 'FIRED'`) > 0 {
				db.Do(t, `UPDATE outbox.task SET run_at = now() WHERE state = 'scheduled'`)
				runOnce()
			}
			check(db)
			h.balanced(t)
			for name, got := range h.outcomes() {
				if _, bad := types[name]; bad && (strings.Count(got, "retry") != 2 || strings.Count(got, "dead") != 2) {
					t.Errorf("%s: observers heard %s", name, got)
				}
			}
			if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); int(told.Load()) != n {
				t.Errorf("OnDead was called %d times for %d dead letters", told.Load(), n)
			}
			for name, c := range types {
				if want := fmt.Sprintf(`"outbox: Backoff panicked; the task waits by the default backoff" task_type=%q attempt=1 `,
					name); c.backoff != (log.Count(want) == 2) {
					t.Errorf("%s: %d records of its Backoff", name, log.Count(want))
				}
			}
			for _, want := range []string{"Backoff panicked", "OnDead panicked", "an observer panicked", "it panicked: ",
				`its Next panicked; it is tried again" schedule="bad as it fires"`, `its Next panicked; it is tried again" schedule="bad as it is added"`} {
				if log.Count(want) == 0 {
					t.Errorf("no record with %q", want)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, want) && (!strings.Contains(line, place) || !strings.Contains(line, " stack=")) {
						t.Errorf("no place or no stack in %s", line)
					}
				}
			}
			db.wantText(t, "bad as it fires: false, good: true", `SELECT string_agg(name || ': ' || (next_at > now()), ', '
				ORDER BY name) FROM outbox.schedule`)
			armed.Store(false)
			runOnce()
			db.wantText(t, "1 2", `SELECT string_agg(payload->>'N', ' ' ORDER BY payload) FROM outbox.task`)
			db.wantRows(t, 3, `outbox.schedule WHERE next_at > now()`)

			db = begin()
			tx := db.begin(t)
			result := outboxtest.Drain(t, tx, reg, outboxtest.Retries())
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			check(db)
			for name := range types {
				if runs := result.Of(name); len(runs) != 4 {
					t.Errorf("Drain made %d runs of %s, want 4: %v", len(runs), name, runs)
				}
			}
		})
	}
}
