package run

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/key"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// Runner runs the tasks of one run of a relay, from their claim until what became of them is
// recorded.
type Runner struct {
	store.Store
	*running
	Params
	abandoned chan struct{} // closed when no result is waited for any more
	suspects  suspects
	groups    groupSizes
}

// Params are what a runner needs.
type Params struct {
	Log      *slog.Logger
	Events   Events
	Journal  *store.Journal
	NewPace  func() pg.Pace
	Claiming context.Context // ends when claiming is to stop
	Handling context.Context // ends when the drain timeout has passed
}

func NewRunner(s store.Store, p Params) *Runner {
	return &Runner{Store: s, running: newRunning(), Params: p, abandoned: make(chan struct{})}
}

// Abandon ends the wait for results that are not written yet.
func (r *Runner) Abandon() { close(r.abandoned) }

// ClaimSize is how many of h's tasks, of a Tx or Batch handler, one claim takes at most.
func (r *Runner) ClaimSize(h *handler.Handler) int { return r.groups.of(h) }

func (r *Runner) Stopping() bool { return r.Claiming.Err() != nil }

var ErrNoSlot = errors.New("relay: other calls of the type hold all its slots")

// tellClaim tells of a claim that came through.
func (r *Runner) tellClaim(h *handler.Handler, tasks int, began, had time.Time) {
	if r.Events.Observed() {
		r.Events.Claimed(h, tasks, began, had)
	}
}

// backoffOf returns how long a task waits after the given number of attempts failed, and whether
// the handler's Backoff says stop.
func backoffOf(log *slog.Logger, h *handler.Handler) func(attempts int) (wait time.Duration, stop bool) {
	return func(attempts int) (wait time.Duration, stop bool) {
		wait, stop, err := h.Backoff(attempts)
		if err != nil {
			log.Error("outbox: Backoff panicked; the task waits by the default backoff", "task_type", h.Type, "attempt", attempts, "wait", wait, pgerr.LogAttr(err))
		}
		return wait, stop
	}
}

// failed logs an attempt that failed or was throttled and is recorded, if another run follows. Of
// runs that are throttled in a row it logs the first one at Info.
func (r *Runner) failed(t *store.Row, c store.Change) {
	switch {
	case c.Throttled:
		level := slog.LevelInfo
		if t.Throttled() {
			level = slog.LevelDebug
		}
		r.Log.Log(context.Background(), level, "outbox: a task was throttled", "task_type", t.TaskType, "task_id", t.ID, "attempt", c.Attempt+1,
			"next", c.Wait.Round(time.Millisecond), "error", pgerr.Text(c.Err))
	case c.Failed:
		r.Log.Warn("outbox: an attempt failed", "task_type", t.TaskType, "task_id", t.ID, "attempt", c.Attempt, "max_attempts", t.Max,
			"next", c.Wait.Round(time.Millisecond), pgerr.LogAttr(c.Err))
	}
}

// died tells of a dead letter whose commit is confirmed.
func (r *Runner) died(t *store.Row, c store.Change) {
	d := DeadLetter{TaskID: t.ID, Key: key.Of(r.Identity.DatabaseID(), t.ID), Type: t.TaskType, Attempt: c.Attempt, MaxAttempts: t.Max, Reason: c.Reason, Error: pgerr.Text(c.Err), Err: original(c.Err)}
	r.Log.Error("outbox: a task became a dead letter", "task_type", d.Type, "task_id", d.TaskID, "attempt", d.Attempt, "reason", c.Reason, pgerr.LogAttr(c.Err))
	r.Events.Died(d)
}

func logCanceled(log *slog.Logger, taskType string, taskIDs []int64) {
	log.Info("outbox: running tasks were canceled", "task_type", taskType, "tasks", taskIDs)
}
