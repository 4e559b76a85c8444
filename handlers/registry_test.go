package handlers_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
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
	if got := len(r.Handlers()); got != 3 { // the registry is usable after the panics
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
	wantText(t, panics(t, func() { r.Use(handlers.Recover(), nil) }), "handlers: Use: a Middleware is nil")
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
	if got := r.Handlers()[0].MaxAttempts; got != 20 {
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
			r.Handlers()
		})
	}
	all.Wait()
	if got := len(r.Handlers()); got != 20 {
		t.Errorf("got %d handlers, want 20", got)
	}
}

func TestABatchCannotReachCommitAndRollback(t *testing.T) {
	err := batch(t, func(_ context.Context, tx outbox.Tx, _ []*outbox.Task[mail]) error {
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
