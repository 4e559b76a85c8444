package handlers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
)

// Results are found through wrapping, as by errors.As. Of several in one error, as of errors.Join,
// one that does not finish the task comes before RunAgain, and that before Discard. Returned for a
// whole batch a result holds for each of its tasks, and the effects of the call are kept or dropped
// as for a single task.

// Action is what a handler's result asks for.
type Action string

// The actions that a result may ask for. Later versions may have more.
const (
	ActionDone       Action = "done"        // nil
	ActionRetry      Action = "retry"       // an error, also a panic: again after the backoff
	ActionRetryAfter Action = "retry_after" // of RetryAfter
	ActionSnooze     Action = "snooze"      // of Snooze and SnoozeWith
	ActionDiscard    Action = "discard"     // of Discard
	ActionDead       Action = "dead"        // of Dead
	ActionRunAgain   Action = "run_again"   // of RunAgain and RunAgainWith
)

// ActionOf tells middleware and tests what a handler's result asks for, also where it is wrapped. The
// relay may decide otherwise: a retry after the last attempt is a dead letter. For a [BatchResult] ask
// it of each member; the whole is ActionRetry, or ActionDone if it is empty.
func ActionOf(err error) Action {
	if err == nil {
		return ActionDone
	}
	if some, is := batchResultOf(err); is && len(some.ids()) == 0 {
		return ActionDone
	}
	return Action(handler.ResultOf(err).Action.String())
}

// Snooze runs the task again after d, by PostgreSQL's clock, and counts no attempt. Effects of the
// call are rolled back. d is cut to between 100 ms and 100 years.
func Snooze(d time.Duration) error {
	return &handler.Result{Action: handler.ActionSnooze, Wait: clamp(max(d, handler.LeastWait))}
}

// SnoozeWith runs the task again after d, as [Snooze] does, and gives it a reason, which becomes
// the task's last error. No attempt is counted, and the task's timeline does not grow. A nil err
// gives Snooze(d).
func SnoozeWith(d time.Duration, err error) error {
	return &handler.Result{Action: handler.ActionSnooze, Wait: clamp(max(d, handler.LeastWait)), Err: err, Reason: err != nil}
}

// RetryAfter runs the task again after d, and up to a tenth more, as the other side asks by a
// Retry-After header. err becomes the task's last error, and a throttled run in its timeline; a nil
// err is one that says how long the wait is. No attempt counts within the retry span: until three
// days after the task's first failure, or the time of [MaxElapsed]. Each one after that is a failed
// attempt. A d below 100 ms is taken as 100 ms. The wait is cut to what is left of the retry span,
// and after it to 24 h; the last error says so. If d <= 0 it is a failed attempt with the backoff.
func RetryAfter(d time.Duration, err error) error {
	if d <= 0 {
		return cmp.Or(err, errNoWait)
	}
	return &handler.Result{Action: handler.ActionRetryAfter, Wait: clamp(max(d, handler.LeastWait)), Err: err}
}

var (
	errNoWait   = errors.New("handlers: RetryAfter was given neither a wait nor an error")
	errNoReason = errors.New("handlers: Dead was given no error")
)

// Discard finishes the task as done, keeping what the handler wrote, though err happened: nothing
// will be gained by a retry. The relay logs err. A nil err gives nil, which finishes the task as
// well.
func Discard(err error) error {
	if err == nil {
		return nil
	}
	return &handler.Result{Action: handler.ActionDiscard, Err: err}
}

// Dead sends the task to the dead letters at once; what the handler wrote is rolled back. The last
// error is err's text, with what wrapping the result has added. errors.Is and errors.As find err.
// For a nil err it says that there is none.
func Dead(err error) error {
	return &handler.Result{Action: handler.ActionDead, Err: cmp.Or(err, errNoReason)}
}

// BatchResult is a Batch handler's result for some tasks of its batch, by task ID: an error or a
// control result each. Tasks that are not in it, or in it with nil, are done; an empty BatchResult
// is like nil. The effects of the call are committed with the removal of the done ones, so it must
// have written nothing for those that it fails.
//
// One with the ID of a task that is not of the batch, or joined with another error, is an error for
// the whole batch: nothing is kept, and the tasks run one by one. From a handler of another kind,
// or as a member of another BatchResult, it is an error like any other.
type BatchResult map[int64]error

// Error has the first result and the number of the others.
func (b BatchResult) Error() string {
	ids := b.ids()
	switch len(ids) {
	case 0:
		return "all tasks of the batch are done"
	case 1:
		return fmt.Sprintf("task %d: %v", ids[0], b[ids[0]])
	}
	return fmt.Sprintf("task %d: %v (and %d more)", ids[0], b[ids[0]], len(ids)-1)
}

// Unwrap returns the results that are not nil, in the order of their task IDs: errors.Is and
// errors.As find what one of them is.
func (b BatchResult) Unwrap() []error {
	var out []error
	for _, id := range b.ids() {
		out = append(out, b[id])
	}
	return out
}

// ids are those of tasks with a result, in order.
func (b BatchResult) ids() []int64 {
	ids := slices.Sorted(maps.Keys(b))
	return slices.DeleteFunc(ids, func(id int64) bool { return b[id] == nil })
}

// batchResultOf finds the BatchResult that err is or wraps.
func batchResultOf(err error) (some BatchResult, is bool) {
	is = handler.Find(err, &some)
	return some, is
}

// membersOf are the members, without nil, of the BatchResult that err is or wraps. wrong: it does
// not tell for sure which of the tasks are done.
func membersOf(taskIDs []int64, err error) (some BatchResult, is bool, wrong error) {
	all, is := batchResultOf(err)
	if !is {
		return nil, false, nil
	}
	if !handler.Alone(err) {
		return nil, true, fmt.Errorf("handlers: a BatchResult is joined with another error, "+
			"so it does not tell which tasks are done: %v", err)
	}
	some, unknown := BatchResult{}, maps.Clone(all)
	for _, id := range taskIDs {
		if one := all[id]; one != nil {
			some[id] = one
		}
		delete(unknown, id)
	}
	if len(unknown) > 0 {
		return nil, true, fmt.Errorf("handlers: a BatchResult has a result for task %d, which is not of the batch, "+
			"so it does not tell which tasks are done", slices.Min(slices.Collect(maps.Keys(unknown))))
	}
	return some, true, nil
}

// join adds the handler's own result to b, the tasks that it never saw as they do not decode.
func (b BatchResult) join(taskIDs []int64, err error) error {
	own, is, wrong := membersOf(taskIDs, err)
	switch {
	case wrong != nil:
		return wrong
	case err == nil:
		return b.result()
	case is:
		maps.Copy(own, b)
		return own.result()
	case len(b) > 0 && handler.ResultOf(err).Action != handler.ActionRetry:
		// It would hold for those as well, and Discard would lose them. One by one each gets its
		// own.
		return fmt.Errorf("handlers: %d of the batch's tasks do not decode, so this result cannot be for all: %v", len(b), err)
	}
	return err
}

// result is b, or nil if it is empty.
func (b BatchResult) result() error {
	if len(b) == 0 {
		return nil
	}
	return b
}

func clamp(d time.Duration) time.Duration {
	return min(max(d, 0), 100*365*24*time.Hour)
}

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

// RunAgainWith runs the task again after d, as [RunAgain] does, with another payload for the next
// iteration: a cursor that the handler keeps. The payload is encoded now. One that Enqueue would
// refuse makes the run a failed attempt, with an error that wraps outbox.ErrInvalidPayload or
// outbox.ErrPayloadTooLarge. A task that an outbox.Codec has encoded keeps it: the payload is
// encoded by it; that of another task is stored as it is. No hook of outbox.BeforeEnqueue runs. It
// is for this one task: a Batch handler returns it in a [BatchResult]; as the result of a batch of
// several tasks it is an error.
func RunAgainWith[P any](task *outbox.Task[P], d time.Duration, payload P) error {
	encoded, err := outbox.TaskSpec{Type: task.Type, Payload: payload, Options: []outbox.Option{outbox.MaxPayload(16 << 20)}}.Encode()
	if err != nil {
		return fmt.Errorf("handlers: RunAgainWith: %w", err)
	}
	return &handler.Result{Action: handler.ActionRunAgain, Wait: clamp(d), Payload: encoded, TaskID: task.ID}
}

// checkResult returns the result of a call for these tasks, or what is wrong with it. The names are those of
// their codecs, by id.
func checkResult(h *handler.Handler, taskIDs []int64, codecs map[int64]string, err error) error {
	if h.Kind == outbox.KindBatch {
		some, is, wrong := membersOf(taskIDs, err)
		for id, one := range some {
			some[id] = h.CheckAgain(id, codecs[id], one)
		}
		if wrong != nil {
			return wrong
		} else if is {
			return some.result()
		}
	}
	if len(taskIDs) == 1 {
		return h.CheckAgain(taskIDs[0], codecs[taskIDs[0]], err)
	}
	if r := handler.ResultOf(err); r.Payload != nil {
		return fmt.Errorf("handlers: RunAgainWith: its payload is for task %d, not for a batch of %d: "+
			"return it in a BatchResult", r.TaskID, len(taskIDs))
	}
	return err
}
