package handlers

import (
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
)

// RunAgain finishes this run of the task as a success and runs the task again after d, by
// PostgreSQL's clock: a recurring task. It keeps its ID; [outbox.Task.Iterations] is one more, the
// attempts begin anew and the last error is cleared. What the handler wrote is kept: it commits
// together with the task's next iteration, so each iteration of a Tx or Batch handler takes effect
// exactly once. A Leased handler runs at least once in each iteration; see [outbox.Task.Complete]
// for writes that are committed exactly once.
//
// d counts from the end of the run and is cut to between 0 and 100 years. For firings at fixed
// times see relay.Schedule. As the result of a whole batch it holds for each of its tasks.
func RunAgain(d time.Duration) error {
	return &handler.Result{Action: handler.ActionRunAgain, Wait: clamp(d)}
}

// RunAgainWith is [RunAgain] with another payload for the next iteration: a cursor that the handler
// keeps. The payload is encoded now. One that Enqueue would refuse makes the run a failed attempt,
// with an error that wraps outbox.ErrInvalidPayload or outbox.ErrPayloadTooLarge. It is for this
// one task: a Batch handler returns it in a [BatchResult]; as the result of a batch of several tasks
// it is an error.
func RunAgainWith[P any](task *outbox.Task[P], d time.Duration, payload P) error {
	encoded, err := outbox.TaskSpec{Type: task.Type, Payload: payload, Options: []outbox.Option{outbox.MaxPayload(16 << 20)}}.Encode()
	if err != nil {
		return fmt.Errorf("handlers: RunAgainWith: %w", err)
	}
	return &handler.Result{Action: handler.ActionRunAgain, Wait: clamp(d), Payload: encoded, TaskID: task.ID}
}

// checkResult returns the result of a call for these tasks, or what is wrong with it.
func checkResult(h *handler.Handler, taskIDs []int64, err error) error {
	if h.Kind == outbox.KindBatch {
		some, is, wrong := membersOf(taskIDs, err)
		for id, one := range some {
			some[id] = h.CheckAgain(id, one)
		}
		if wrong != nil {
			return wrong
		} else if is {
			return some.result()
		}
	}
	if len(taskIDs) == 1 {
		return h.CheckAgain(taskIDs[0], err)
	}
	if r := handler.ResultOf(err); r.Payload != nil {
		return fmt.Errorf("handlers: RunAgainWith: its payload is for task %d, not for a batch of %d: "+
			"return it in a BatchResult", r.TaskID, len(taskIDs))
	}
	return err
}
