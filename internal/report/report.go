// Package report tells how runs end: to the log, to observers and to the dispatcher when the next
// task is due.
package report

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/key"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Reporter tells how the runs of one relay end.
type Reporter struct {
	Log      *slog.Logger
	Due      *Due
	events   Events
	identity *store.Identity
	ended    func(taskID int64)
}

// New returns a Reporter. ended hears of each task whose run has ended, for those who wait for it.
func New(log *slog.Logger, events Events, identity *store.Identity, ended func(taskID int64)) *Reporter {
	return &Reporter{Log: log, Due: newDue(), events: events, identity: identity, ended: ended}
}

// RunEnded tells those who wait for tasks that their run has ended, and what became of them is written.
func (r *Reporter) RunEnded(rows ...*store.Row) {
	for _, row := range rows {
		r.ended(row.ID)
	}
}

// Claimed tells of a claim that came through.
func (r *Reporter) Claimed(h *handler.Handler, tasks int, began, had time.Time) {
	if r.events.Observed() {
		r.events.Claimed(h, tasks, began, had)
	}
}

// Recorded tells what became of tasks of one type, once that is committed. Without verdicts they are
// done.
func (r *Reporter) Recorded(rows []*store.Row, verdicts []decide.Verdict) {
	var together []int // those with one record for all of an outcome
	for i, v := range verdicts {
		t := rows[i]
		switch {
		case v.Outcome.Record() != "":
			together = append(together, i)
		case v.Outcome.Gone(), v.Back:
		case v.Change.Reason != "":
			r.Died(t, v.Change)
		default:
			r.failed(t, v.Change)
			r.Due.Schedule(v.Change.Wait)
		}
	}
	for len(together) > 0 {
		v, ids := verdicts[together[0]], []int64(nil)
		together = slices.DeleteFunc(together, func(i int) (same bool) {
			if same = verdicts[i].Outcome == v.Outcome; same {
				ids = append(ids, rows[i].ID)
			}
			return same
		})
		r.Together(rows[0].TaskType, v.Outcome, ids, v.Change.Err)
	}
}

// Together logs tasks of a run whose outcome has one record for all of them.
func (r *Reporter) Together(taskType string, o decide.Outcome, taskIDs []int64, because error) {
	attrs := []any{"task_type", taskType, "tasks", taskIDs}
	if o.Tells() {
		attrs = append(attrs, "error", pgerr.Text(because))
	}
	r.Log.Info("outbox: "+o.Record(), attrs...)
}

// failed logs an attempt that failed or was throttled and is recorded, if another run follows. Of
// runs that are throttled in a row it logs the first one at Info.
func (r *Reporter) failed(t *store.Row, c store.Change) {
	switch {
	case c.Throttled:
		level := slog.LevelInfo
		if t.Throttled() {
			level = slog.LevelDebug
		}
		r.Log.Log(context.Background(), level, "outbox: a task was throttled", "task_type", t.TaskType, "task_id", t.ID,
			"attempt", c.Attempt+1, "next", c.Wait.Round(time.Millisecond), "error", pgerr.Text(c.Err))
	case c.Failed:
		r.Log.Warn("outbox: an attempt failed", "task_type", t.TaskType, "task_id", t.ID, "attempt", c.Attempt,
			"max_attempts", t.Max, "next", c.Wait.Round(time.Millisecond), pgerr.LogAttr(c.Err))
	}
}

// Died tells of a dead letter whose commit is confirmed.
func (r *Reporter) Died(t *store.Row, c store.Change) {
	d := DeadLetter{ID: t.ID, Key: key.Of(r.identity.DatabaseID(), t.ID), Type: t.TaskType, Attempt: c.Attempt, MaxAttempts: t.Max,
		Reason: c.Reason, LastError: pgerr.Text(c.Err), Err: call.Original(c.Err)}
	r.Log.Error("outbox: a task became a dead letter", "task_type", d.Type, "task_id", d.ID, "attempt", d.Attempt,
		"reason", c.Reason, pgerr.LogAttr(c.Err))
	r.events.Died(d)
}

// End is the end of one run: of one task, also in a group, or of the tasks of one claim of a Batch
// handler.
type End struct {
	Type    string
	Kind    outbox.Kind
	Called  time.Time // zero: the handler was not called
	Handled time.Duration
	Tasks   []TaskEnd
}

// TaskEnd is what became of one task in a run.
type TaskEnd struct {
	ID      int64
	Attempt int
	Outcome decide.Outcome
	Reason  outbox.Reason // of Dead
	Err     error         // of the handler, or the relay's; nil if it is done
	Waited  time.Duration // for how long the task had been due when the claim had it
}

// Begun is a call of a handler that begins.
type Begun struct {
	Type  string
	Kind  outbox.Kind
	Tasks []TaskEnd // their ids and attempts
}

// Lost is a run whose process died, or the last of several such runs of a task.
type Lost struct {
	Type    string
	Kind    outbox.Kind
	TaskID  int64
	Attempt int
}

// DeadLetter is a task that became a dead letter.
type DeadLetter struct {
	ID          int64
	Key         string
	Type        string
	Attempt     int
	MaxAttempts int
	Reason      outbox.Reason
	LastError   string
	Err         error
}

// Events hears of claims and runs. Its methods may be called at the same time.
type Events interface {
	// Observed reports whether somebody hears of all but Died, which are not called else.
	Observed() bool
	Claimed(h *handler.Handler, tasks int, began, had time.Time)
	// Began hears of a handler that is about to be called. It keeps none of the tasks.
	Began(Begun)
	// Lost hears of runs that were lost, when the next run of the task begins or the task is buried.
	Lost(Lost)
	Ended(End)
	// Died hears of a dead letter whose COMMIT is confirmed.
	Died(DeadLetter)
	// Waited is for how long a task that was due at runAt, in µs since 1970 by PostgreSQL's clock,
	// had been so at a time of the process's clock.
	Waited(runAt int64, at time.Time) time.Duration
}

// Due is when tasks are due that runs have scheduled or postponed.
type Due struct {
	Changed chan struct{} // of capacity one: a task was scheduled

	mu        sync.Mutex
	next      time.Time
	postponed time.Time // the last time to which a task was postponed for the sake of another
}

func newDue() *Due { return &Due{Changed: make(chan struct{}, 1)} }

// Schedule notes that a task is due after wait.
func (d *Due) Schedule(wait time.Duration) {
	at := time.Now().Add(wait)
	d.mu.Lock()
	if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
	d.mu.Unlock()
	Poke(d.Changed)
}

// Postpone notes that a task waits for the sake of another.
func (d *Due) Postpone(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := time.Now().Add(wait); at.After(d.postponed) {
		d.postponed = at
	}
}

// MayBePostponed reports whether a task that is due at the given time may be postponed.
func (d *Due) MayBePostponed(due time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !due.After(d.postponed.Add(100 * time.Millisecond)) // the clocks differ
}

// Take returns the given time, or that of the next task that was scheduled since the last call,
// whichever comes first. Zero is no time.
func (d *Due) Take(next time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at := d.next; next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	d.next = time.Time{}
	return next
}

// Poke makes a channel of capacity one ready, if it is not.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

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

// Calling notes the attempts of all tasks, or of one of a group, before their handler, which may change a
// task, is called.
func (w *Watch) Calling(tasks ...*store.Task) {
	if w == nil {
		return
	}
	for _, t := range tasks {
		w.end.Tasks[w.at[t.ID]].Attempt = t.Attempt
	}
	begun := Begun{Type: w.end.Type, Kind: w.end.Kind, Tasks: w.end.Tasks}
	if len(tasks) == 1 { // of a group
		i := w.at[tasks[0].ID]
		begun.Tasks = w.end.Tasks[i : i+1]
	}
	w.to.Began(begun)
}

// Lost tells of runs that the journal has as lost.
func (w *Watch) Lost(rows ...*store.Row) {
	if w == nil {
		return
	}
	for _, r := range rows {
		if r.Lost > 0 {
			w.to.Lost(Lost{Type: w.end.Type, Kind: w.end.Kind, TaskID: r.ID, Attempt: r.Begun() - 1})
		}
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
