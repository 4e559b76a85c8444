package handler

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// Action is what a control result asks for.
type Action int

// The actions of control results. A new one also needs
//   - a constructor in package handlers, and a row in docs/guide/handlers.md
//   - its text in String, and in Error if it has a Wait
//   - its constant in package handlers, which ActionOf returns
//   - its verdict in internal/decide/decide.go
//   - its record, by handlers.Log (handlers/middleware.go) or by the relay
//   - a case in TestDecide and TestResultsAreFoundThroughWrapping
//   - if no outcome fits: one in internal/decide/outcome.go and relay/observe.go
const (
	ActionRetry      Action = iota // failed: retry after the backoff, as after any other error
	ActionRetryAfter               // the other side asks to wait: retry after Result.Wait
	ActionSnooze                   // run again after Result.Wait; no attempt is counted
	ActionDiscard                  // done, though Result.Err
	ActionDead                     // to the dead letters
	ActionRunAgain                 // done for this time; run again after Result.Wait, as attempt 1
)

func (a Action) String() string {
	return [...]string{"retry", "retry_after", "snooze", "discard", "dead", "run_again"}[a]
}

// Result is the error that Snooze, SnoozeWith, RetryAfter, Discard, Dead, RunAgain and RunAgainWith
// of package handlers return.
type Result struct {
	Action Action
	Wait   time.Duration
	Err    error
	Reason bool // of ActionSnooze: Err is to be the last error
	// Payload is that of the next iteration, of ActionRunAgain; nil keeps the task's own.
	Payload json.RawMessage
	TaskID  int64 // that Payload is for
}

// Error is the text that becomes the task's last error. That of Dead is its error's alone: the
// task's state says dead.
func (r *Result) Error() string {
	if r.Action == ActionDead && r.Err != nil {
		return r.Err.Error()
	}
	text := r.Action.String()
	switch r.Action {
	case ActionRetryAfter:
		text = fmt.Sprintf("retry after %v", r.Wait)
	case ActionSnooze:
		text = fmt.Sprintf("snooze after %v", r.Wait)
	case ActionRunAgain:
		text = fmt.Sprintf("run again after %v", r.Wait)
	}
	if r.Err == nil {
		return text
	}
	return text + ": " + r.Err.Error()
}

// Unwrap gives the error that the result was made from.
func (r *Result) Unwrap() error { return r.Err }

// ResultOf finds the control result in err's chain. Any other error is a plain failure.
func ResultOf(err error) Result {
	if err == nil {
		return Result{}
	}
	var r *Result
	if Find(err, &r) && r != nil {
		found := *r
		found.Err = err // the text on record is that of the whole chain, with the context that wrapping added
		return found
	}
	return Result{Err: err}
}

// Find is errors.As without the values of panics and the members of a batch's result: a panic is a
// failed attempt, even if its value is a result of package handlers, and a member is the result of
// its own task alone.
func Find[T error](err error, target *T) bool {
	for err != nil {
		if found, ok := err.(T); ok {
			*target = found
			return true
		}
		if _, ok := err.(*guard.PanicError); ok || IsBatchResult(err) {
			return false
		}
		if x, ok := err.(interface{ As(any) bool }); ok && x.As(target) {
			return true
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			return slices.ContainsFunc(x.Unwrap(), func(one error) bool { return Find(one, target) })
		default:
			return false
		}
	}
	return false
}

// CheckAgain returns err, a handler's result for the task, or what is wrong with its RunAgainWith.
func (h *Handler) CheckAgain(taskID int64, err error) error {
	var r *Result
	if !Find(err, &r) || r == nil || r.Payload == nil {
		return err
	}
	if r.TaskID != taskID {
		return fmt.Errorf("handlers: RunAgainWith: its payload is for task %d, not for task %d", r.TaskID, taskID)
	}
	task := outbox.TaskSpec{Type: h.Type, Payload: r.Payload, Options: h.Options}
	if _, err := task.Encode(); err != nil {
		return fmt.Errorf("handlers: RunAgainWith: %w", err)
	}
	return err
}
