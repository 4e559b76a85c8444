package relay

import (
	"errors"
	"math"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// after is the change of a task that a result asks for, when begun attempts were begun.
func (r *runner) after(h *handlers.Handler, t *store.Row, result *handlers.Result, begun int) store.Change {
	c := store.Change{Attempt: min(begun, math.MaxInt16), Err: result.Err, Keep: t.Undecided, Failed: true}
	switch result.Action {
	case handlers.ActionSnooze:
		return store.Change{Attempt: begun - 1, Wait: result.Wait, Keep: t.Undecided}
	case handlers.ActionRunAgain:
		return store.Change{Wait: result.Wait, Again: true, Payload: string(result.Payload)}
	case handlers.ActionDead:
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
	if c.Wait, stop = r.backoff(h, begun); stop {
		c.Reason = store.ReasonHandler
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
		a.r.journal.MarkLost(a.runs)
		a.watch.all(PutOff)
		return cause
	}
	t, result := a.rows[0], handlers.ResultOf(handlerErr)
	next := a.r.after(a.h, t, result, t.Begun())
	for try := range 6 {
		if try > 0 {
			store.Pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		found, err := a.RecordAside(t, next)
		if err == nil && found {
			a.watch.change(t.ID, next)
			a.watch.confirm()
			if next.Reason != "" {
				a.r.died(t, next)
			}
			a.r.due(next.Wait)
			return cause
		}
	}
	if result.Action == handlers.ActionSnooze {
		a.r.journal.ForgetRuns(a.runs) // no attempt
		return cause
	}
	err := a.OrphanRun(t, a.runs.Token)
	if err == nil {
		a.watch.all(Retry)
	}
	return errors.Join(cause, err)
}
