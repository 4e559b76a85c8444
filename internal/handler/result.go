package handler

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// Action is what a control result asks for.
type Action int

// The actions of control results. CONTRIBUTING.md says what a new one needs.
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

// ResultOf finds the control result in err's chain. Any other error is a plain failure. Of several
// results the first counts of those that finish the task least.
func ResultOf(err error) Result {
	if err == nil {
		return Result{}
	}
	found := Result{}
	first := true
	each(err, func(r *Result) (more bool) {
		if r != nil && (first || r.finishes() < found.finishes()) {
			found, first = *r, false
		}
		return true
	})
	found.Err = err // the text on record is that of the whole chain, with the context that wrapping added
	return found
}

// finishes orders results by how much of the task they finish.
func (r *Result) finishes() int {
	switch r.Action {
	case ActionDiscard:
		return 2
	case ActionRunAgain:
		return 1
	}
	return 0
}

// Find is errors.As without the values of panics, the members of a batch's result and what a
// control result was made from: a panic is a failed attempt, even if its value is a result of
// package handlers, a member is the result of its own task alone, and the outer result is the one
// that counts.
func Find[T error](err error, target *T) bool {
	return !each(err, func(found T) (more bool) {
		*target = found
		return false
	})
}

// each calls yield with each T that Find may find, until that returns false. more: it never did.
func each[T error](err error, yield func(T) (more bool)) (more bool) {
	for err != nil {
		if found, ok := err.(T); ok {
			return yield(found)
		}
		switch err.(type) {
		case *guard.PanicError, *Result:
			return true
		}
		if IsBatchResult(err) {
			return true
		}
		var found T
		if x, ok := err.(interface{ As(any) bool }); ok && x.As(&found) {
			return yield(found)
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, one := range x.Unwrap() {
				if !each(one, yield) {
					return false
				}
			}
			return true
		default:
			return true
		}
	}
	return true
}

// Alone reports whether the BatchResult in err's chain is joined with no other error.
func Alone(err error) bool {
	for !IsBatchResult(err) {
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			all := x.Unwrap()
			if len(all) != 1 {
				return false
			}
			err = all[0]
		default:
			return true // by its As method
		}
	}
	return true
}

// CheckAgain returns err, a handler's result for the task, or what is wrong with its RunAgainWith.
func (h *Handler) CheckAgain(taskID int64, err error) error {
	r := ResultOf(err)
	if r.Payload == nil {
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
