package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// line is the place of the line that is n below the call of line.
func line(n int) string {
	_, file, l, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, l+n)
}

func TestADuplicateRegistrationNamesBothPlaces(t *testing.T) {
	r := handlers.New()
	places := map[string]string{"TX": line(1)}
	handlers.Tx(r, outbox.NewTaskType[mail]("TX"), nothing)
	places["BATCH"] = line(1)
	handlers.Batch(r, outbox.NewTaskType[mail]("BATCH"), 10, nothingBatch)
	places["LEASED"] = line(1)
	handlers.Leased(r, outbox.NewTaskType[mail]("LEASED"), nothingLeased)

	for name, first := range places {
		var second string
		again := outbox.NewTaskType[map[string]any](name)
		got := panics(t, func() {
			second = line(1)
			handlers.Leased(r, again, func(context.Context, *outbox.Task[map[string]any]) error { return nil })
		})
		if want := fmt.Sprintf("handlers: task type %s is registered twice: at %s and at %s", name, first,
			second); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := len(handler.Registered(r)); got != 3 { // the registry is usable after the panics
		t.Errorf("got %d handlers, want 3", got)
	}
}

func TestStartUpMistakesPanic(t *testing.T) {
	r := handlers.New()
	var zero outbox.TaskType[mail]
	const isZero, isNil = "is the zero TaskType: make it with outbox.NewTaskType", "is nil"
	for name, c := range map[string]struct {
		register func()
		want     string
	}{
		"Tx, zero":     {func() { handlers.Tx(r, zero, nothing) }, isZero},
		"Batch, zero":  {func() { handlers.Batch(r, zero, 1, nothingBatch) }, isZero},
		"Leased, zero": {func() { handlers.Leased(r, zero, nothingLeased) }, isZero},
		"Tx, nil":      {func() { handlers.Tx(r, sendMail, nil) }, isNil},
		"Batch, nil":   {func() { handlers.Batch(r, sendMail, 1, nil) }, isNil},
		"Leased, nil":  {func() { handlers.Leased(r, sendMail, nil) }, isNil},
	} {
		t.Run(name, func(t *testing.T) { wantText(t, panics(t, c.register), "registered at", "registry_test.go:", c.want) })
	}
	wantText(t, panics(t, func() { r.Use(handlers.Log(nil), nil) }), "handlers: Use: a Middleware is nil")
	wantText(t, panics(t, func() { handlers.Tx(nil, sendMail, nothing) }), "handlers: SEND_MAIL: the Registry is nil")
	wantText(t, panics(t, func() { handlers.Tx(handlers.New(nil), sendMail, nothing) }), "an Option is nil")
	if got := len(handler.Registered(r)); got != 0 {
		t.Errorf("got %d handlers, want 0", got)
	}
}

func TestHandlersAreSortedAndWhatWasRegisteredByThen(t *testing.T) {
	r := &handlers.Registry{}
	for _, name := range []string{"b", "c", "a"} {
		handlers.Tx(r, outbox.NewTaskType[mail](name), nothing)
	}
	before := handler.Registered(r)
	handlers.Tx(r, outbox.NewTaskType[mail]("d"), nothing)
	var names []string
	for _, h := range before {
		names = append(names, h.Type)
		h.MaxAttempts = 99 // a copy
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("got %v, want a b c", names)
	}
	if got := handler.Registered(r)[0].MaxAttempts; got != 20 {
		t.Errorf("got MaxAttempts %d in the registry, want it untouched", got)
	}
}

func TestTheRegistryIsSafeForConcurrentUse(t *testing.T) {
	r := handlers.New()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			handlers.Leased(r, outbox.NewTaskType[mail](fmt.Sprint(i)), nothingLeased)
			r.Use(handlers.Log(nil))
			handler.Registered(r)
		})
	}
	all.Wait()
	if got := len(handler.Registered(r)); got != 20 {
		t.Errorf("got %d handlers, want 20", got)
	}
}

func TestMain(m *testing.M) { relaytest.Main(m) }

type mail struct {
	To    string
	Count int
}

var sendMail = outbox.NewTaskType[mail]("SEND_MAIL")

// nothing is a handler of each kind.
func nothing(context.Context, *sql.Tx, *outbox.Task[mail]) error { return nil }

func nothingBatch(context.Context, *sql.Tx, []*outbox.Task[mail]) error { return nil }

func nothingLeased(context.Context, *outbox.Task[mail]) error { return nil }

func raw(id int64, payload string) *outbox.Task[json.RawMessage] {
	return &outbox.Task[json.RawMessage]{ID: id, Type: "SEND_MAIL", Payload: json.RawMessage(payload), Attempt: 1}
}

// only is the one handler of a registry.
func only(t *testing.T, r *handlers.Registry) *handler.Handler {
	t.Helper()
	all := handler.Registered(r)
	if len(all) != 1 {
		t.Fatalf("got %d handlers, want 1", len(all))
	}
	return all[0]
}

// call calls the one handler of a registry on tasks 1, 2, … of those payloads.
func call(t *testing.T, r *handlers.Registry, claim handler.Claim, payloads ...string) error {
	t.Helper()
	var tasks []*outbox.Task[json.RawMessage]
	for i, p := range payloads {
		tasks = append(tasks, raw(int64(i+1), p))
	}
	h, tx := only(t, r), new(sql.Tx)
	if h.Kind == outbox.KindLeased {
		tx = nil
	}
	return h.Run(t.Context(), tx, claim, tasks)
}

// leased calls a Leased handler, with options, on one task of that payload.
func leased[P any](t *testing.T, payload string, h func(context.Context, *outbox.Task[P]) error,
	opts ...handlers.Option) error {
	t.Helper()
	r := handlers.New()
	handlers.Leased(r, outbox.NewTaskType[P]("SEND_MAIL"), h, opts...)
	return call(t, r, handler.Claim{}, payload)
}

// batch calls a Batch handler on tasks 1, 2, … of those payloads.
func batch(t *testing.T, h func(context.Context, *sql.Tx, []*outbox.Task[mail]) error, payloads ...string) error {
	t.Helper()
	r := handlers.New()
	handlers.Batch(r, sendMail, 10, h)
	return call(t, r, handler.Claim{}, payloads...)
}

// panics is the text of f's panic.
func panics(t *testing.T, f func()) (text string) {
	t.Helper()
	defer func() {
		p := recover()
		if p == nil {
			t.Error("want a panic")
		}
		text = fmt.Sprint(p)
	}()
	f()
	return ""
}

func wantText(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("got %q, want %q in it", got, part)
		}
	}
}
