package handlers_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// answer is a handler that prints its attempt and its time limit.
func answer(ctx context.Context, task *outbox.Task[string]) error {
	deadline, limited := ctx.Deadline()
	fmt.Println("attempt", task.Attempt, "of", task.MaxAttempts, limited, time.Until(deadline).Round(time.Minute))
	return nil
}

// limits prints what a relay has stored of the limits of a type when it started.
func limits(reg *handlers.Registry) {
	db, drop := exampleDatabase()
	defer drop()
	runDue(context.Background(), db, reg)
	printRow(db, `SELECT concat_ws(', ', 'running: ' || max_running, 'running of a key: ' || max_running_per_key,
		'starts: ' || rate || ' in ' || make_interval(secs => rate_per / 1e6)) FROM outbox.task_type`)
}

// The options of the registry are the defaults of its handlers.
func ExampleNew() {
	reg := handlers.New(handlers.MaxAttempts(5), handlers.Timeout(time.Hour))
	handlers.Leased(reg, phone, answer, handlers.MaxAttempts(3))
	ran(reg)
	// Output:
	// attempt 1 of 3 true 1h0m0s
	// gone
}

// A run has two minutes.
func ExampleTimeout() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answer, handlers.Timeout(2*time.Minute))
	ran(reg)
	// Output:
	// attempt 1 of 20 true 2m0s
	// gone
}

// A run without heartbeats has its lease, however its process is.
func ExampleNoHeartbeat() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answer, handlers.NoHeartbeat(3*time.Minute))
	ran(reg)
	// Output:
	// attempt 1 of 20 true 3m0s
	// gone
}

// Five calls at once in all processes, as the other side allows no more.
func ExampleMaxRunning() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answered, handlers.MaxRunning(5))
	limits(reg)
	// Output: running: 5
}

// Two calls at once for each customer: tasks are enqueued with outbox.GroupBy(customer).
func ExampleMaxRunningPerKey() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answered, handlers.MaxRunningPerKey(2))
	limits(reg)
	// Output: running of a key: 2
}

// A hundred starts a minute in all processes.
func ExampleRate() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answered, handlers.Rate(100, time.Minute))
	limits(reg)
	// Output: starts: 100 in 00:01:00
}

// One call at once in this process, which has little memory.
func ExampleMaxRunningPerRelay() {
	reg := handlers.New()
	handlers.Leased(reg, phone, answer, handlers.MaxRunningPerRelay(1))
	ran(reg)
	// Output:
	// attempt 1 of 20 true 5m0s
	// gone
}

// Tasks of an urgent type run before all others of equal priority.
func ExamplePriority() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	named := func(name string, opts ...handlers.Option) outbox.TaskType[int] {
		t := outbox.NewTaskType[int](name)
		handlers.Leased(reg, t, func(_ context.Context, task *outbox.Task[int]) error {
			fmt.Println(task.Type)
			return nil
		}, opts...)
		return t
	}
	report, reset := named("SEND_REPORT"), named("RESET_PASSWORD", handlers.Priority(-10))
	enqueueAll(db, report.New(1), reset.New(1))
	runDue(context.Background(), db, reg)
	// Output:
	// RESET_PASSWORD
	// SEND_REPORT
}

// told is middleware that says when a call begins, and how it ended.
func told(name string) handlers.Middleware {
	return func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			fmt.Println(name, "begins", call.Type)
			err := next(ctx, call)
			fmt.Println(name, "ends:", err)
			return err
		}
	}
}

// Middleware around every handler.
func ExampleRegistry_Use() {
	reg := handlers.New()
	reg.Use(told("audit"))
	handlers.Leased(reg, phone, answer)
	ran(reg)
	// Output:
	// audit begins CALL
	// attempt 1 of 20 true 5m0s
	// audit ends: <nil>
	// gone
}

// Middleware around one handler is inside that of the registry.
func ExampleUse() {
	reg := handlers.New()
	reg.Use(told("all"))
	handlers.Leased(reg, phone, answer, handlers.Use(told("one")))
	ran(reg)
	// Output:
	// all begins CALL
	// one begins CALL
	// attempt 1 of 20 true 5m0s
	// one ends: <nil>
	// all ends: <nil>
	// gone
}

// Middleware writes to the log of its relay.
func ExampleCall_Logger() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New(handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			call.Logger().Warn("a call", "tasks", len(call.Tasks))
			return next(ctx, call)
		}
	}))
	handlers.Leased(reg, phone, answer)
	enqueueAll(db, phone.New("Ada"))
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: noTime})
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(log)})
	must(err)
	must(r.RunOnce(context.Background()))
	// Output:
	// level=WARN msg="a call" tasks=1
	// attempt 1 of 20 true 5m0s
}
