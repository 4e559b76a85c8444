package report

import (
	"context"
	"log/slog"
	"time"

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
}

// New returns a Reporter.
func New(log *slog.Logger, events Events, identity *store.Identity) *Reporter {
	return &Reporter{Log: log, Due: newDue(), events: events, identity: identity}
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
	var discarded, canceled []int64
	var because error
	for i, v := range verdicts {
		t := rows[i]
		switch {
		case v.Outcome == decide.Discarded:
			discarded, because = append(discarded, t.ID), v.Change.Err
		case v.Outcome == decide.Canceled:
			canceled = append(canceled, t.ID)
		case v.Done, v.Back:
		case v.Change.Reason != "":
			r.Died(t, v.Change)
		default:
			r.failed(t, v.Change)
			r.Due.Schedule(v.Change.Wait)
		}
	}
	if len(discarded) > 0 {
		r.Log.Info("outbox: tasks were discarded by their handler",
			"task_type", rows[0].TaskType, "tasks", discarded, "error", pgerr.Text(because))
	}
	if len(canceled) > 0 {
		r.Canceled(rows[0].TaskType, canceled)
	}
}

// Canceled logs running tasks that were canceled.
func (r *Reporter) Canceled(taskType string, taskIDs []int64) {
	r.Log.Info("outbox: running tasks were canceled", "task_type", taskType, "tasks", taskIDs)
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
