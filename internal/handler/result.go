package handler

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
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

// actions say what others act by.
var actions = [...]struct {
	name     string // as handlers.Action has it
	text     string // before its error's in the task's last error, if it has a text
	waits    bool   // Result.Wait follows the text
	outcome  string // of the run as relay.Outcome has it, if the relay does as it is asked
	finishes int    // how much of the task it finishes: of several results the least counts
}{
	ActionRetry:      {name: "retry", text: "retry", outcome: "failed"},
	ActionRetryAfter: {name: "retry_after", text: "retry after", waits: true, outcome: "throttled"},
	ActionSnooze:     {name: "snooze", text: "snooze after", waits: true, outcome: "snoozed"},
	ActionDiscard:    {name: "discard", outcome: "discarded", finishes: 2},
	ActionDead:       {name: "dead", outcome: "dead"},
	ActionRunAgain:   {name: "run_again", text: "run again after", waits: true, outcome: "run_again", finishes: 1},
}

// String is the action as handlers.Action has it.
func (a Action) String() string { return actions[a].name }

// Outcome is that of the run as relay.Outcome has it, if the relay does as it is asked.
func (a Action) Outcome() string { return actions[a].outcome }

// Result is the error that Snooze, SnoozeWith, RetryAfter, Discard, Dead, RunAgain and RunAgainWith
// of package handlers return.
type Result struct {
	Action Action
	Wait   time.Duration
	Err    error
	Reason bool // of ActionSnooze: Err is to be the last error
	// Payload is that of the next iteration, of ActionRunAgain; nil keeps the task's own.
	Payload json.RawMessage
	TaskID  int64           // that Payload is for
	Stored  json.RawMessage // Payload by the task's codec, once CheckAgain has found nothing wrong
}

// Error is the text that becomes the task's last error. That of Dead and Discard is their error's
// alone: the dead letter, or the outcome, says the rest.
func (r *Result) Error() string {
	text := actions[r.Action].text
	if actions[r.Action].waits {
		text = fmt.Sprintf("%s %v", text, r.Wait)
	}
	switch {
	case r.Err == nil:
		return cmp.Or(text, r.Action.String())
	case text == "":
		return r.Err.Error()
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
	var found Result
	if r := resultIn(err); r != nil {
		found = *r
	}
	found.Err = err // the text on record is that of the whole chain, with the context that wrapping added
	return found
}

// resultIn finds the result of ResultOf; nil: there is none.
func resultIn(err error) (found *Result) {
	each(err, func(r *Result) (more bool) {
		if r != nil && (found == nil || actions[r.Action].finishes < actions[found.Action].finishes) {
			found = r
		}
		return true
	})
	return found
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

// CheckAgain returns err, a handler's result for the task, or what is wrong with its RunAgainWith. The name is
// that of the codec that has encoded the task, "" without one: it encodes the next payload as well.
func (h *Handler) CheckAgain(taskID int64, name string, err error) error {
	r := resultIn(err)
	if r == nil || r.Payload == nil {
		return err
	}
	if r.TaskID != taskID {
		return fmt.Errorf("handlers: RunAgainWith: its payload is for task %d, not for task %d", r.TaskID, taskID)
	}
	task := outbox.TaskSpec{Type: h.Type, Payload: r.Payload,
		Options: append(slices.Clip(h.Options), codec.Plain.(outbox.Option))}
	if _, err := task.Encode(); err != nil {
		return fmt.Errorf("handlers: RunAgainWith: %w", err)
	}
	r.Stored = r.Payload
	if name != "" {
		stored, err := h.Codecs.Encode(name, r.Payload)
		if err != nil {
			return fmt.Errorf("handlers: RunAgainWith: %w: %w", outbox.ErrInvalidPayload, err)
		}
		if len(stored) > codec.MostStored {
			return fmt.Errorf("handlers: RunAgainWith: %w: its codec makes it %d bytes, at most %d",
				outbox.ErrPayloadTooLarge, len(stored), codec.MostStored)
		}
		r.Stored = json.RawMessage(stored)
	}
	return err
}
