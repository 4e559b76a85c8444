package forward

import (
	"context"
	"errors"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

// learned is what a call has learned of the broker and its targets.
type learned struct {
	targets map[string]*targetResult
	// reached: an event passed, or the answer of a target came back.
	reached bool
	// replied: an error of one event, which the publisher may have found by itself.
	replied bool
	down    []unanswered
}

type targetResult struct {
	passed, answered bool
	blocked          error // the last TargetUnavailable
	after            time.Duration
}

// unanswered is an event, by its place in the call, that had no connection or no answer in time.
type unanswered struct {
	at    int
	err   error
	after time.Duration
	late  bool
}

// settle decides on each event by its error, and on the circuits.
func (c *call) settle(limit context.Context, errs []error) {
	l := &learned{targets: map[string]*targetResult{}}
	for i, e := range c.events {
		to := l.targets[e.To]
		if to == nil {
			to = &targetResult{}
			l.targets[e.To] = to
		}
		var err error
		if errs != nil {
			err = errs[i]
		}
		id := c.tasks[i].ID
		after, gone := IsUnavailable(err)
		targetAfter, blocked := IsTargetUnavailable(err)
		late := limit.Err() != nil && errors.Is(err, limit.Err())
		switch {
		case late && stopped(limit): // nobody's fault, and no result
			c.putOff(c.tasks[i], err, leastPause)
		case err == nil:
			c.f.published.Add(1)
			to.passed, l.reached = true, true
		case IsPermanent(err): // perhaps it was never sent
			c.f.permanent.Add(1)
			c.failed[id] = handlers.Dead(err)
		case handlers.ActionOf(err) == "snooze":
			c.putOff(c.tasks[i], reasonOf(err), handler.ResultOf(err).Wait)
			l.replied = true
		case blocked:
			to.blocked, to.after, l.reached = err, max(to.after, targetAfter), true
			c.failed[id] = unavailableSince(sinceOf(c.tasks[i], time.Now()), err)
			if targetAfter > 0 {
				c.f.unavailable.Add(1)
				c.failed[id] = handlers.RetryAfter(min(targetAfter, mostAfter), c.failed[id])
			} else {
				c.f.temporary.Add(1)
			}
		case gone, late:
			l.down = append(l.down, unanswered{i, err, after, late})
		case handlers.ActionOf(err) == "throttle":
			c.f.unavailable.Add(1)
			c.failed[id] = err
			to.answered, l.replied = true, true
		default:
			c.f.temporary.Add(1)
			c.failed[id] = err
			to.answered, l.replied = true, true
		}
	}
	c.settleBroker(l)
	for target, to := range l.targets {
		c.settleTarget(target, to)
	}
}

// stopped reports whether a call ended as one of its events was canceled, or as the relay stops.
func stopped(limit context.Context) bool {
	cause := context.Cause(limit)
	return errors.Is(cause, outbox.ErrCanceled) || errors.Is(cause, outbox.ErrDraining)
}

// reasonOf is why a publisher snoozes an event.
func reasonOf(snooze error) error {
	var r *handler.Result
	if errors.As(snooze, &r) && r.Err != nil {
		return r.Err
	}
	return errors.New("the publisher has it wait")
}

// settleBroker decides on the events without an answer, and on the broker's circuit.
func (c *call) settleBroker(l *learned) {
	late, after, target := map[string]error{}, time.Duration(0), broker
	for i, d := range l.down {
		if d.late {
			late[c.events[d.at].ID] = d.err
		}
		after = max(after, d.after)
		if to := c.events[d.at].To; i == 0 || to == target {
			target = to
		} else {
			target = broker
		}
	}
	guilty := !l.reached && len(l.down) == len(late) && c.f.late.atFault(late)
	wait := after
	switch {
	case l.reached, guilty, len(l.down) == 0 && l.replied:
		c.f.circuits.succeeded(c.log, broker)
		delete(c.passes, broker)
	case len(l.down) == 0: // no result
	case len(l.down) == len(late) && target != broker && c.passes[broker].trial.IsZero():
		to := l.targets[target] // the others may be well
		to.blocked, to.after = l.down[0].err, after
	default:
		wait = c.f.circuits.failed(c.log, broker, l.down[0].err, after)
		delete(c.passes, broker)
	}
	for _, d := range l.down {
		t, to := c.tasks[d.at], l.targets[c.events[d.at].To]
		if l.reached && !to.passed { // the broker is there, for others
			to.blocked, to.after = d.err, max(to.after, d.after)
		}
		if d.late && (l.reached || guilty) && c.f.late.count(c.events[d.at].ID) {
			c.f.temporary.Add(1)
			c.failed[t.ID] = d.err
			continue
		}
		c.putOff(t, d.err, wait)
	}
}

// settleTarget decides on the circuit of a target.
func (c *call) settleTarget(target string, to *targetResult) {
	switch {
	case to.passed, to.answered && to.blocked == nil:
		c.f.circuits.succeeded(c.log, target)
	case to.blocked != nil:
		c.f.circuits.failed(c.log, target, to.blocked, to.after)
	default:
		return
	}
	delete(c.passes, target)
}
