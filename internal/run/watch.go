package run

import (
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// watch is what observers are to hear of one claim of a Tx or Batch handler, or of one leased run;
// nil, which does nothing, without any. Tasks of which nothing is set met a failure of the
// infrastructure.
type watch struct {
	to   Events
	end  End
	each []End         // of a group, whose tasks have an End each; only the calls
	at   map[int64]int // of a task, in end.Tasks; nil for one task
	told bool
}

// newWatch begins to watch the tasks of a claim that ended at the given time.
func newWatch(to Events, h *handler.Handler, rows []*store.Row, claimed time.Time) *watch {
	if !to.Observed() {
		return nil
	}
	w := &watch{to: to, end: End{Type: h.Type, Kind: h.Kind, Tasks: make([]TaskEnd, len(rows))}}
	if len(rows) > 1 {
		w.at = make(map[int64]int, len(rows))
		if h.GroupSize > 1 {
			w.each = make([]End, len(rows))
		}
	}
	for i, t := range rows {
		w.end.Tasks[i] = TaskEnd{TaskID: t.ID, Attempt: min(t.Begun(), t.Max), Waited: to.Waited(t.RunAt, claimed)}
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

// calledOne notes the call of the handler for one task of a group.
func (w *watch) calledOne(task *store.Task, at time.Time, took time.Duration) {
	if w == nil {
		return
	}
	i := w.at[task.ID]
	w.each[i].Called, w.each[i].Handled, w.end.Tasks[i].Attempt = at, took, task.Attempt
}

// set says what became of a task.
func (w *watch) set(taskID int64, v verdict) {
	if w != nil {
		end := &w.end.Tasks[w.at[taskID]]
		if end.Outcome, end.Err = v.outcome, original(v.change.Err); v.outcome == Dead {
			end.Reason = v.change.Reason
		}
	}
}

// all says what became of all tasks.
func (w *watch) all(o Outcome) {
	if w == nil {
		return
	}
	for i := range w.end.Tasks {
		w.end.Tasks[i].Outcome, w.end.Tasks[i].Reason, w.end.Tasks[i].Err = o, "", nil
	}
}

// canceled says that these tasks were canceled, and the others given back.
func (w *watch) canceled(taskIDs []int64) {
	w.all(PutOff)
	for _, id := range taskIDs {
		w.set(id, verdict{outcome: Canceled})
	}
}

// tell tells it, once.
func (w *watch) tell() {
	if w == nil || w.told {
		return
	}
	w.told = true
	if w.each == nil {
		w.to.Ended(w.end)
	}
	for i, one := range w.each {
		w.to.Ended(End{Type: w.end.Type, Kind: w.end.Kind, Called: one.Called, Handled: one.Handled, Tasks: w.end.Tasks[i : i+1]})
	}
}
