package report

import (
	"time"

	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// Watch collects the ends of one claim of a Tx or Batch handler, or of one leased run, for the
// observers. It is nil, which does nothing, without observers. The outcome of a task of which
// nothing is set is a failure of the infrastructure.
type Watch struct {
	to   Events
	end  End
	each []End         // of a group, whose tasks have an End each; only the calls
	at   map[int64]int // of a task, in end.Tasks; nil for one task
	told bool
}

// Watch returns a Watch of the tasks of a claim that ended at the given time.
func (r *Reporter) Watch(h *handler.Handler, rows []*store.Row, claimed time.Time) *Watch {
	to := r.events
	if !to.Observed() {
		return nil
	}
	w := &Watch{to: to, end: End{Type: h.Type, Kind: h.Kind, Tasks: make([]TaskEnd, len(rows))}}
	if len(rows) > 1 {
		w.at = make(map[int64]int, len(rows))
		if h.GroupSize > 1 {
			w.each = make([]End, len(rows))
		}
	}
	for i, t := range rows {
		w.end.Tasks[i] = TaskEnd{ID: t.ID, Attempt: min(t.Begun(), t.Max), Waited: to.Waited(t.RunAt, claimed)}
		if w.at != nil {
			w.at[t.ID] = i
		}
	}
	return w
}

// Calling notes the attempts of tasks before their handler, which may change a task, is called.
func (w *Watch) Calling(tasks ...*store.Task) {
	if w == nil {
		return
	}
	for _, t := range tasks {
		w.end.Tasks[w.at[t.ID]].Attempt = t.Attempt
	}
}

// Called notes the call of the handler.
func (w *Watch) Called(at time.Time, took time.Duration) {
	if w != nil {
		w.end.Called, w.end.Handled = at, took
	}
}

// CalledOne notes the call of the handler for one task of a group.
func (w *Watch) CalledOne(taskID int64, at time.Time, took time.Duration) {
	if w != nil {
		one := &w.each[w.at[taskID]]
		one.Called, one.Handled = at, took
	}
}

// Set notes what became of a task.
func (w *Watch) Set(taskID int64, v decide.Verdict) {
	if w != nil {
		end := &w.end.Tasks[w.at[taskID]]
		if end.Outcome, end.Err = v.Outcome, call.Original(v.Change.Err); v.Outcome == decide.Dead {
			end.Reason = v.Change.Reason
		}
	}
}

// SetAll notes what became of all tasks.
func (w *Watch) SetAll(o decide.Outcome) {
	if w == nil {
		return
	}
	for i := range w.end.Tasks {
		w.end.Tasks[i].Outcome, w.end.Tasks[i].Reason, w.end.Tasks[i].Err = o, "", nil
	}
}

// SetCanceled notes that these tasks were canceled, and that the others are as before their claim.
func (w *Watch) SetCanceled(taskIDs []int64) {
	w.SetAll(decide.Released)
	for _, id := range taskIDs {
		w.Set(id, decide.Verdict{Outcome: decide.Canceled})
	}
}

// Tell tells the observers, once.
func (w *Watch) Tell() {
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
