package relay

import (
	"errors"
	"math"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// after is the change of a task that a result asks for, when begun attempts were begun.
func (r *runner) after(h *handlers.Handler, t *row, result *handlers.Result, begun int) taskChange {
	c := taskChange{attempt: min(begun, math.MaxInt16), err: result.Err, keep: t.undecided, failed: true}
	switch result.Action {
	case handlers.ActionSnooze:
		return taskChange{attempt: begun - 1, wait: result.Wait, keep: t.undecided}
	case handlers.ActionRunAgain:
		return taskChange{wait: result.Wait, again: true, payload: string(result.Payload)}
	case handlers.ActionDead:
		c.reason = reasonHandler
		return c
	}
	if begun >= t.max {
		c.reason, c.attempt = reasonAttempts, min(begun, t.max)
		return c
	}
	if c.wait = result.Wait; c.wait > 0 {
		return c
	}
	var stop bool
	if c.wait, stop = r.backoff(h, begun); stop {
		c.reason = reasonHandler
	}
	return c
}

// backoff is how long a task waits after the given number of attempts failed, and whether its
// Backoff says stop.
func (r *runner) backoff(h *handlers.Handler, attempts int) (wait time.Duration, stop bool) {
	wait, stop, err := h.Backoff(attempts)
	if err != nil {
		r.log.Error("outbox: Backoff panicked; the task waits by the default backoff", "task_type", h.Type, "attempt", attempts, "wait", wait, "error", pgerr.Text(err))
	}
	return wait, stop
}

// outOfBand records a failed attempt in a transaction of its own. cause, if any, is why it had to.
func (a *attempt) outOfBand(handlerErr, cause error) error {
	if len(a.rows) > 1 {
		// The failure may be any member's: they run one by one, where it counts.
		a.r.journal.markLost(a.runs)
		a.watch.all(PutOff)
		return cause
	}
	t, result := a.rows[0], handlers.ResultOf(handlerErr)
	next := a.r.after(a.h, t, result, t.begun())
	for try := range 6 {
		if try > 0 {
			pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		found, err := a.recordAside(t, next)
		if err == nil && found {
			a.watch.change(t.id, next)
			a.watch.confirm()
			if next.reason != "" {
				a.r.died(t, next)
			}
			a.r.due(next.wait)
			return cause
		}
	}
	if result.Action == handlers.ActionSnooze {
		a.r.journal.forgetRuns(a.runs) // no attempt
		return cause
	}
	err := a.orphanRun(t, a.runs.token)
	if err == nil {
		a.watch.all(Retry)
	}
	return errors.Join(cause, err)
}
