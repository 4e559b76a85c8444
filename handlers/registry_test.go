package handlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
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
		again := outbox.NewTaskType[map[string]any](name)
		var second string
		for kind, register := range map[string]func(){
			"Tx": func() {
				second = line(1)
				handlers.Tx(r, again, func(context.Context, *sql.Tx, *outbox.Task[map[string]any]) error { return nil })
			},
			"Batch": func() {
				second = line(1)
				handlers.Batch(r, again, 10, func(context.Context, outbox.Tx, []*outbox.Task[map[string]any]) error { return nil })
			},
			"Leased": func() {
				second = line(1)
				handlers.Leased(r, again, func(context.Context, *outbox.Task[map[string]any]) error { return nil })
			},
		} {
			got := panics(t, register)
			want := fmt.Sprintf("handlers: task type %s is registered twice: at %s and at %s", name, first, second)
			if got != want {
				t.Errorf("%s: got %s, want %s", kind, got, want)
			}
		}
	}
	if got := len(r.Handlers()); got != 3 { // the registry is usable after the panics
		t.Errorf("got %d handlers, want 3", got)
	}
}

func TestStartUpMistakesPanic(t *testing.T) {
	r := handlers.New()
	var zero outbox.TaskType[mail]
	for name, register := range map[string]func(){
		"Tx":     func() { handlers.Tx(r, zero, nothing) },
		"Batch":  func() { handlers.Batch(r, zero, 1, nothingBatch) },
		"Leased": func() { handlers.Leased(r, zero, nothingLeased) },
	} {
		t.Run("zero TaskType "+name, func(t *testing.T) {
			wantText(t, panics(t, register), "registry_test.go:", "is the zero TaskType: make it with outbox.NewTaskType")
		})
	}
	for name, register := range map[string]func(){
		"Tx":     func() { handlers.Tx(r, sendMail, nil) },
		"Batch":  func() { handlers.Batch(r, sendMail, 1, nil) },
		"Leased": func() { handlers.Leased(r, sendMail, nil) },
	} {
		t.Run("nil handler "+name, func(t *testing.T) {
			wantText(t, panics(t, register), "the handler of SEND_MAIL registered at", "registry_test.go:", "is nil")
		})
	}
	t.Run("nil middleware", func(t *testing.T) {
		wantText(t, panics(t, func() { r.Use(handlers.Recover(), nil) }), "handlers: Use: a Middleware is nil")
	})
	if got := len(r.Handlers()); got != 0 {
		t.Errorf("got %d handlers, want 0", got)
	}
}

func TestHandlersAreSortedAndWhatWasRegisteredByThen(t *testing.T) {
	r := handlers.New()
	for _, name := range []string{"b", "c", "a"} {
		handlers.Tx(r, outbox.NewTaskType[mail](name), nothing)
	}
	before := r.Handlers()
	handlers.Tx(r, outbox.NewTaskType[mail]("d"), nothing)
	var names []string
	for _, h := range before {
		names = append(names, h.Type)
		h.MaxAttempts = 99 // a copy
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("got %v, want a b c", names)
	}
	if got := r.Handlers()[0].MaxAttempts; got != 10 {
		t.Errorf("got MaxAttempts %d in the registry, want it untouched", got)
	}
}

func TestTheRegistryIsSafeForConcurrentUse(t *testing.T) {
	r := handlers.New()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			handlers.Leased(r, outbox.NewTaskType[mail](fmt.Sprint(i)), nothingLeased)
			r.Use(handlers.Recover())
			for _, h := range r.Handlers() {
				if err := h.Run(t.Context(), nil, handler.Claim{}, []*outbox.Task[json.RawMessage]{raw(1, `{}`)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if got := len(r.Handlers()); got != 20 {
		t.Errorf("got %d handlers, want 20", got)
	}
}

func TestTheHandlerGetsTheWholeTask(t *testing.T) {
	now := time.Now()
	in := outbox.Task[json.RawMessage]{ID: 7, Type: "SEND_MAIL", Payload: json.RawMessage(`{"To": "a", "Count": 2}`),
		Headers: map[string]string{"k": "v"}, Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o", RunAt: now, CreatedAt: now.Add(-time.Hour), Iterations: 6,
		LastError: "no luck", Lease: lease{}}
	want := outbox.Task[mail]{ID: 7, Type: "SEND_MAIL", Payload: mail{To: "a", Count: 2},
		Headers: in.Headers, Attempt: 3, MaxAttempts: 5, Priority: -1, OrderingKey: "o", RunAt: in.RunAt, CreatedAt: in.CreatedAt, Iterations: 6,
		LastError: "no luck", Lease: lease{}}
	if fields := reflect.TypeFor[outbox.Task[mail]]().NumField(); fields != 13 {
		t.Errorf("Task has %d fields, this test knows 13", fields)
	}
	r := handlers.New()
	tx := new(sql.Tx)
	calls := 0
	check := func(got *outbox.Task[mail]) {
		t.Helper()
		calls++
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, want %+v", *got, want)
		}
	}
	handlers.Tx(r, outbox.NewTaskType[mail]("TX"), func(_ context.Context, got *sql.Tx, task *outbox.Task[mail]) error {
		if got != tx {
			t.Error("it is another transaction")
		}
		check(task)
		return nil
	})
	handlers.Batch(r, outbox.NewTaskType[mail]("BATCH"), 5, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[mail]) error {
		check(tasks[0])
		return nil
	})
	handlers.Leased(r, outbox.NewTaskType[mail]("LEASED"), func(_ context.Context, task *outbox.Task[mail]) error {
		check(task)
		return nil
	})
	for _, h := range r.Handlers() {
		if err := h.Run(t.Context(), tx, handler.Claim{}, []*outbox.Task[json.RawMessage]{&in}); err != nil {
			t.Errorf("%s: %v", h.Type, err)
		}
	}
	if calls != 3 {
		t.Errorf("got %d calls, want 3", calls)
	}
}

type lease struct{}

func (lease) Complete(context.Context, func(*sql.Tx) error) error { return nil }
func (lease) Extend(context.Context, time.Duration) error         { return nil }

func TestABatchCannotReachCommitAndRollback(t *testing.T) {
	err := batch(t, func(_ context.Context, tx outbox.Tx, _ []*outbox.Task[mail]) error {
		if _, ok := tx.(*sql.Tx); ok {
			t.Error("it is a *sql.Tx")
		}
		if _, ok := tx.(interface{ Commit() error }); ok {
			t.Error("it has Commit")
		}
		if _, ok := tx.(interface{ Rollback() error }); ok {
			t.Error("it has Rollback")
		}
		return nil
	}, `{}`)
	if err != nil {
		t.Error(err)
	}
}
