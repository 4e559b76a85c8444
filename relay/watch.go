package relay

import (
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/store"
)

// watch is what observers are to hear of one claim of a Tx or Batch handler; nil, which does nothing, without any. What is set before the commit
// holds once it is confirmed.
type watch struct {
	to   *observers
	end  RunEnd
	at   map[int64]int // of a task, in end.Tasks; nil for one task
	sure bool
	told bool
}

// newWatch begins to watch the tasks of a claim that ended at the given time.
func newWatch(to *observers, h *handlers.Handler, rows []*store.Row, claimed time.Time) *watch {
	if !to.observed() {
		return nil
	}
	w := &watch{to: to, end: RunEnd{Type: h.Type, Kind: h.Kind, Tasks: make([]TaskEnd, len(rows))}}
	if len(rows) > 1 {
		w.at = make(map[int64]int, len(rows))
	}
	for i, t := range rows {
		w.end.Tasks[i] = TaskEnd{TaskID: t.ID, Attempt: min(t.Begun(), t.Max), Waited: to.waited(t.RunAt, claimed)}
		if w.at != nil {
			w.at[t.ID] = i
		}
	}
	return w
}

// called notes the call of the handler.
func (w *watch) called(at time.Time, took time.Duration, tasks []*store.Task) {
	if w == nil {
		return
	}
	w.end.Called, w.end.Handled = at, took
	for i, t := range tasks {
		w.end.Tasks[i].Attempt = t.Attempt
	}
}

// set says what becomes of a task if the transaction commits.
func (w *watch) set(taskID int64, o Outcome) {
	if w != nil {
		w.end.Tasks[w.at[taskID]].Outcome = o
	}
}

// change says it of a task that is not done.
func (w *watch) change(taskID int64, c store.Change) {
	if w == nil {
		return
	}
	w.set(taskID, outcomeOf(c))
	w.end.Tasks[w.at[taskID]].Reason = c.Reason
}

// confirm says that what was set is so.
func (w *watch) confirm() {
	if w != nil {
		w.sure = true
	}
}

// all says what became of all tasks.
func (w *watch) all(o Outcome) {
	if w == nil {
		return
	}
	w.sure = true
	for i := range w.end.Tasks {
		w.end.Tasks[i].Outcome, w.end.Tasks[i].Reason = o, ""
	}
}

// canceled says that these tasks were canceled, and the others given back.
func (w *watch) canceled(taskIDs []int64) {
	w.all(PutOff)
	for _, id := range taskIDs {
		w.set(id, Canceled)
	}
}

// tell tells it, once.
func (w *watch) tell() {
	if w == nil || w.told {
		return
	}
	w.told = true
	if !w.sure {
		w.all(Infrastructure)
	}
	w.to.tellEnd(w.end)
}

// outcomeOf is the outcome of a task that is not done.
func outcomeOf(c store.Change) Outcome {
	switch {
	case c.Reason != "":
		return Dead
	case c.Again:
		return RunAgain
	case c.Untried:
		return PutOff
	case c.Failed:
		return Retry
	}
	return Snoozed
}
