package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

type Line struct{ Indent int }

var RenderLine = outbox.NewTaskType[Line]("RENDER_LINE")

func render(l Line) string { return strings.Repeat(" ", l.Indent) + "text" }

// The error of a panic names the app's own line, also if the standard library panicked. The value and
// the stack are for a service that collects errors. relay.DeadLetter and relay.TaskEnd have them, too.
func ExamplePanicError() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	report := func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			err := next(ctx, call)
			var p *handlers.PanicError
			if errors.As(err, &p) {
				fmt.Println("value:", p.Value)
				fmt.Println("stack:", strings.Contains(string(p.Stack), "strings.Repeat("))
			}
			return err
		}
	}
	reg := handlers.New()
	reg.Use(report)
	handlers.Leased(reg, RenderLine, func(_ context.Context, task *outbox.Task[Line]) error {
		fmt.Println(render(task.Payload))
		return nil
	}, handlers.MaxAttempts(1))
	enqueueAll(db, RenderLine.New(Line{Indent: -1}))
	runDue(ctx, db, reg)
	printRow(db, `SELECT last_error FROM outbox.dead_task`)
	// Output:
	// value: strings: negative Repeat count
	// stack: true
	// panic: strings: negative Repeat count (in github.com/txoutbox/outbox/handlers_test.render, handlers/example_panic_test.go:17)
}
