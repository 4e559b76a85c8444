package handlers

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
)

// Call is one call of a handler: one task, or several of one type for a Batch handler.
type Call struct {
	Type  string
	Kind  string // "tx", "batch" or "leased"
	Tasks []*outbox.Task[json.RawMessage]

	// ClaimBegan and ClaimEnded are when the claim of the tasks began, and when it had them, by the
	// clock of its process. Both are zero where no relay runs the handler, as in outboxtest.Drain.
	ClaimBegan, ClaimEnded time.Time

	tx *sql.Tx
}

// Func runs a call; the innermost one decodes the payloads and calls the registered handler.
type Func func(ctx context.Context, call *Call) error

// Middleware wraps a Func. It must call next at most once, in the same goroutine, and return its
// error, or one that wraps it, unless it means to change the result.
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

// Recover turns a panic of what it wraps into an error with the panic's value and where it
// happened, so that middleware outside it sees an error. Without it a panic is caught by the relay
// all the same, as a failed attempt.
func Recover() Middleware {
	return func(next Func) Func {
		return func(ctx context.Context, call *Call) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = guard.Panic(p)
				}
			}()
			return next(ctx, call)
		}
	}
}

// Log writes one record for each call: at Debug when it is done, at Info when it was snoozed,
// discarded or is to run again, at Warn when it failed. It has the type, the task's ID and attempt,
// or the number of tasks if that is not one, the duration and the error; never a payload. A panic
// that passes through leaves no record: put Recover inside. A nil logger is slog.Default.
func Log(logger *slog.Logger) Middleware {
	if logger == nil {
		logger = slog.Default()
	}
	return func(next Func) Func {
		return func(ctx context.Context, call *Call) error {
			start := time.Now()
			err := next(ctx, call)
			attrs := []slog.Attr{slog.String("task_type", call.Type), slog.Duration("duration", time.Since(start))}
			if len(call.Tasks) == 1 {
				attrs = append(attrs, slog.Int64("task_id", call.Tasks[0].ID), slog.Int("attempt", call.Tasks[0].Attempt))
			} else {
				attrs = append(attrs, slog.Int("tasks", len(call.Tasks)))
			}
			level, msg := slog.LevelDebug, "outbox: task done"
			if err != nil {
				level, msg = slog.LevelWarn, "outbox: task failed"
				switch handler.ResultOf(err).Action {
				case handler.ActionSnooze:
					level, msg = slog.LevelInfo, "outbox: task snoozed"
				case handler.ActionDiscard:
					level, msg = slog.LevelInfo, "outbox: task discarded"
				case handler.ActionRunAgain:
					level, msg = slog.LevelInfo, "outbox: task runs again"
				}
				attrs = append(attrs, slog.String("error", guard.Text(err)))
			}
			logger.LogAttrs(ctx, level, msg, attrs...)
			return err
		}
	}
}

// Deadline ends the context of what it wraps after d, if the handler's own timeout is not shorter:
// a limit for a part of the handlers, or for all through Registry.Use. d must be positive.
func Deadline(d time.Duration) Middleware {
	if d <= 0 {
		panic(fmt.Sprintf("handlers: Deadline(%v): must be positive", d))
	}
	return func(next Func) Func {
		return func(ctx context.Context, call *Call) error {
			ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("handlers: deadline of %v: %w", d, context.DeadlineExceeded))
			defer cancel()
			return next(ctx, call)
		}
	}
}
