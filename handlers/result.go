package handlers

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What a handler's result can say beyond nil (done) and an error (failed, retry by backoff). Results are
// found through wrapping, as by errors.As. Returned for a whole batch they hold for each of its tasks,
// and the effects of the call are kept or dropped as for a single task.

// Action is what a control result asks for.
type Action int

// The actions of control results.
const (
	ActionRetry    Action = iota // failed: retry after the backoff, or after Result.Wait if it is set
	ActionSnooze                 // run again after Result.Wait; no attempt is counted
	ActionDiscard                // done, though Result.Err
	ActionDead                   // to the dead letters
	ActionRunAgain               // done for this time; run again after Result.Wait, as attempt 1
)

// Result is the error that Snooze, RetryAfter, Discard, Dead, RunAgain and RunAgainWith return.
type Result struct {
	Action Action
	Wait   time.Duration
	Err    error
	// Payload is that of the next iteration, of ActionRunAgain; nil keeps the task's own.
	Payload json.RawMessage

	taskID int64 // that Payload is for
}

func (r *Result) Error() string {
	name := [...]string{"retry", "snooze", "discard", "dead", "run again"}[r.Action]
	if r.Action == ActionSnooze || r.Action == ActionRetry || r.Action == ActionRunAgain {
		name = fmt.Sprintf("%s after %v", name, r.Wait)
	}
	if r.Err == nil {
		return name
	}
	return name + ": " + r.Err.Error()
}

// Unwrap gives the error that the result was made from.
func (r *Result) Unwrap() error { return r.Err }

// Snooze runs the task again after d, by PostgreSQL's clock, and counts no attempt. Effects of the call
// are rolled back. d is cut to between 0 and 100 years.
func Snooze(d time.Duration) error { return &Result{Action: ActionSnooze, Wait: clamp(d)} }

// RetryAfter fails the task with err and runs it again after d in place of the backoff, as a server's
// Retry-After asks. It counts as an attempt. A nil err gives nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &Result{Action: ActionRetry, Wait: max(clamp(d), time.Microsecond), Err: err}
}

// Discard finishes the task as done, keeping what the handler wrote, though err happened: nothing will be
// gained by a retry. The relay logs err. A nil err gives nil, which finishes the task as well.
func Discard(err error) error {
	if err == nil {
		return nil
	}
	return &Result{Action: ActionDiscard, Err: err}
}

// Dead sends the task to the dead letters at once, with err as its last error; what the handler wrote is
// rolled back. A nil err gives nil, which finishes the task.
func Dead(err error) error {
	if err == nil {
		return nil
	}
	return &Result{Action: ActionDead, Err: err}
}

// ResultOf finds the control result in err's chain. Any other error is a plain failure.
func ResultOf(err error) *Result {
	var r *Result
	if errors.As(err, &r) && r != nil {
		// The text on record is that of the whole chain, with the context that wrapping added.
		return &Result{Action: r.Action, Wait: r.Wait, Err: err, Payload: r.Payload, taskID: r.taskID}
	}
	return &Result{Err: err}
}

// BatchError is a Batch handler's result for some tasks of its batch, by task ID: an error or a control
// result each. Tasks that are not in it, or in it with nil, are done. The effects of the call are committed with the removal of
// the done ones, so it must have written nothing for those that it fails.
type BatchError map[int64]error

func (b BatchError) Error() string {
	for id, err := range b {
		if len(b) == 1 {
			return fmt.Sprintf("task %d: %v", id, err)
		}
	}
	return fmt.Sprintf("%d tasks of the batch failed", len(b))
}

// join adds the handler's own result to b, the tasks that it never saw as they do not decode.
func (b BatchError) join(err error) error {
	var own BatchError
	var r *Result
	switch {
	case errors.As(err, &own):
		for id, err := range own {
			if err != nil {
				b[id] = err
			}
		}
		err = nil
	case len(b) > 0 && errors.As(err, &r):
		// It would hold for those as well, and Discard would lose them. One by one each gets its own.
		return fmt.Errorf("handlers: %d of the batch's tasks do not decode, so this result cannot be for all: %v", len(b), err)
	}
	if err == nil && len(b) > 0 {
		return b
	}
	return err
}

func clamp(d time.Duration) time.Duration {
	return min(max(d, 0), 100*365*24*time.Hour)
}
