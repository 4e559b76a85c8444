package relay

import (
	"log/slog"
	"math"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// after is the change of a task that a result asks for, when begun attempts were begun.
func after(log *slog.Logger, h *handler.Handler, t *store.Row, result *handler.Result, begun int) store.Change {
	c := store.Change{Attempt: min(begun, math.MaxInt16), Err: result.Err, Keep: t.Undecided, Failed: true}
	switch result.Action {
	case handler.ActionSnooze:
		return store.Change{Attempt: begun - 1, Wait: result.Wait, Keep: t.Undecided}
	case handler.ActionRunAgain:
		return store.Change{Wait: result.Wait, Again: true, Payload: string(result.Payload)}
	case handler.ActionDead:
		c.Reason = store.ReasonHandler
		return c
	}
	if begun >= t.Max {
		c.Reason, c.Attempt = store.ReasonAttempts, min(begun, t.Max)
		return c
	}
	if c.Wait = result.Wait; c.Wait > 0 {
		return c
	}
	var stop bool
	if c.Wait, stop = backoff(log, h, begun); stop {
		c.Reason = store.ReasonHandler
	}
	return c
}

// backoff is how long a task waits after the given number of attempts failed, and whether its
// Backoff says stop.
func backoff(log *slog.Logger, h *handler.Handler, attempts int) (wait time.Duration, stop bool) {
	wait, stop, err := h.Backoff(attempts)
	if err != nil {
		log.Error("outbox: Backoff panicked; the task waits by the default backoff", "task_type", h.Type, "attempt", attempts, "wait", wait, "error", pgerr.Text(err))
	}
	return wait, stop
}

// resultOf is the transition that a leased task's outcome asks for. prevented: the database failed
// its Complete. The claim has raised attempt already, so what is no attempt puts it back.
func resultOf(log *slog.Logger, h *handler.Handler, t *store.Row, out callResult, begun int, prevented bool) transition {
	if out.err == nil {
		return transition{outcome: Done, done: true, keep: h.Keep}
	}
	if out.canceled {
		logCanceled(log, h.Type, []int64{t.ID})
		return transition{outcome: Canceled, done: true, canceled: true}
	}
	if runsAgain(out.err) {
		return transition{outcome: RunAgain, change: after(log, h, t, handler.ResultOf(out.err), begun)}
	}
	if out.drained || out.leaseLost {
		ended := Drained
		if out.leaseLost {
			ended = LeaseLost
		}
		return transition{outcome: ended, back: true, change: store.Change{Attempt: begun - 1}, lostBy: t.LostBy}
	}
	result := handler.ResultOf(out.err)
	if result.Action == handler.ActionDiscard {
		log.Info("outbox: a task was discarded by its handler", "task_type", h.Type, "task_id", t.ID, "error", pgerr.Text(out.err))
		return transition{outcome: Discarded, done: true, keep: h.Keep, change: store.Change{Err: out.err}}
	}
	if prevented && !out.overran && result.Action == handler.ActionRetry {
		wait, _ := backoff(log, h, 1)
		return transition{change: store.Change{Attempt: begun - 1, Wait: wait, Err: out.err}}
	}
	next := after(log, h, t, result, begun)
	return transition{outcome: outcomeOf(next), change: next}
}

func logCanceled(log *slog.Logger, taskType string, taskIDs []int64) {
	log.Info("outbox: running tasks were canceled", "task_type", taskType, "tasks", taskIDs)
}
