package handlers

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
)

// Call is one call of a handler: one task, or several of one type for a Batch handler.
type Call struct {
	Type string
	Kind outbox.Kind
	// Tasks have their payloads as they were enqueued, decoded by the outbox.Codec of the task type. One that
	// cannot be decoded has the stored string, and its codec's name in Headers: the innermost Func fails it.
	Tasks []*outbox.Task[json.RawMessage]

	// ClaimStart and ClaimEnd are when the claim of the tasks began, and when it had them, by the
	// process's clock. Both are zero where no relay runs the handler, as in outboxtest.Drain.
	ClaimStart, ClaimEnd time.Time

	tx  *sql.Tx
	log *slog.Logger // the relay's; nil where no relay runs the handler

	undecoded map[int64]error // why no codec has decoded a payload, by the task's id
}

// Logger is the relay's (relay.Config.Logger), or slog.Default where no relay runs the handler.
func (c *Call) Logger() *slog.Logger {
	if c.log == nil {
		return slog.Default()
	}
	return c.log
}

// Func runs a call; the innermost one decodes the payloads and calls the registered handler.
type Func func(ctx context.Context, call *Call) error

// Middleware wraps a Func. It must call next at most once, in the same goroutine, and return its
// error, or one that wraps it, unless it means to change the result. A panic of the handler is a
// [PanicError] that next returns. A panic of middleware goes on through the middleware around it;
// the relay catches it, as a failed attempt.
type Middleware func(next Func) Func

func hasNil(m []Middleware) bool {
	return slices.ContainsFunc(m, func(m Middleware) bool { return m == nil })
}

func wrap(f Func, m []Middleware) Func {
	for i := len(m) - 1; i >= 0; i-- {
		f = m[i](f)
	}
	return f
}

// caught is f with its panics as errors. runtime.Goexit goes on.
func caught(f Func) Func {
	return func(ctx context.Context, call *Call) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = guard.Panic(p)
			}
		}()
		return f(ctx, call)
	}
}

// PanicError is the error of a handler, or other code of the app, that panicked or called
// runtime.Goexit. errors.As finds it in relay.TaskEnd.Err, in relay.DeadLetter.Err, and after a panic
// of the handler in the error that [Middleware] gets from next. A panic is a failed attempt, even
// with a control result as value.
//
//	type PanicError struct {
//		Value any    // the argument of panic; for runtime.Goexit an error that says so
//		Stack []byte // as debug.Stack returns it
//	}
//
// Its text has the value and the innermost function of the app, with file and line. Functions of the
// standard library, of this module and of dependencies are not the app's. Unwrap returns the value if
// that is an error.
type PanicError = guard.PanicError

// Log writes one record for each call of whose result the relay writes none: at Debug when it is
// done, at Info when it was snoozed or is to run again. It has the type, the task's ID and attempt,
// or the number of tasks if that is not one, the duration and the error; never a payload. All
// other results are in the relay's log, once they are committed. A nil logger is the relay's
// (relay.Config.Logger), or slog.Default where no relay runs the handler.
func Log(logger *slog.Logger) Middleware {
	return func(next Func) Func {
		return func(ctx context.Context, call *Call) error {
			start := time.Now()
			err := next(ctx, call)
			level, msg := slog.LevelDebug, "outbox: task done"
			if err != nil {
				level = slog.LevelInfo
				switch handler.ResultOf(err).Action {
				case handler.ActionSnooze:
					msg = "outbox: task snoozed"
				case handler.ActionRunAgain:
					msg = "outbox: task runs again"
				default:
					return err
				}
			}
			attrs := []slog.Attr{slog.String("task_type", call.Type), slog.Duration("duration", time.Since(start))}
			if len(call.Tasks) == 1 {
				attrs = append(attrs, slog.Int64("task_id", call.Tasks[0].ID), slog.Int("attempt", call.Tasks[0].Attempt))
			} else {
				attrs = append(attrs, slog.Int("tasks", len(call.Tasks)))
			}
			if err != nil {
				attrs = append(attrs, slog.String("error", guard.Text(err)))
			}
			cmp.Or(logger, call.Logger()).LogAttrs(ctx, level, msg, attrs...)
			return err
		}
	}
}
