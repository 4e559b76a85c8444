package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
)

// call is one call of the handler.
type call struct {
	f      *Forwarder
	log    *slog.Logger
	failed handlers.BatchResult

	passes map[string]pass // by target; broker is among them
	events []*Event
	tasks  []*outbox.Task[json.RawMessage] // of the events
}

// choose postpones the events whose target's circuit is open, and selects the others. A circuit
// whose pause is over lets one event through as its trial.
func (c *call) choose(ctx context.Context, tasks []*outbox.Task[json.RawMessage]) {
	for _, t := range tasks {
		e, err := c.f.config.newEvent(ctx, t)
		if err == nil && e.To == "" {
			err = Permanent(fmt.Errorf("forward: the route of event %s is empty", e.ID))
		}
		switch {
		case err == nil:
		case ctx.Err() != nil && interrupted(ctx):
			c.postpone(t, err, leastPause)
			continue
		case IsPermanent(err):
			c.f.permanent.Add(1)
			c.failed[t.ID] = handlers.Dead(err)
			continue
		default:
			c.f.temporary.Add(1)
			c.failed[t.ID] = err
			continue
		}
		if p, known := c.passes[e.To]; !known || !p.trial.IsZero() {
			p, refused := c.f.circuits.enter(e.To)
			if refused != nil {
				c.postpone(t, refused.err, refused.wait)
				continue
			}
			c.passes[e.To] = p
		}
		c.events, c.tasks = append(c.events, e), append(c.tasks, t)
	}
}

// endTrials ends the trials that have no result.
func (c *call) endTrials() {
	for _, p := range c.passes {
		c.f.circuits.endTrial(p)
	}
}

// learned is the knowledge of the broker and its targets from one call.
type learned struct {
	targets map[string]*targetResult
	reached bool // an event passed, or a target answered
	replied bool // an event has an error that the publisher may have found by itself
	down    []unanswered
}

type targetResult struct {
	passed, answered bool
	blocked          error // the last TargetUnavailable
	after            time.Duration
}

// unanswered is an event without a connection or without an answer in time.
type unanswered struct {
	at    int // its index in the call
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
		after, gone := isMarked[ofBroker](err)
		targetAfter, blocked := isMarked[ofTarget](err)
		late := limit.Err() != nil && errors.Is(err, limit.Err())
		switch {
		case late && interrupted(limit): // no fault and no result
			c.postpone(c.tasks[i], err, leastPause)
		case err == nil:
			c.f.published.Add(1)
			to.passed, l.reached = true, true
		case IsPermanent(err): // the publisher may not have sent it
			c.f.permanent.Add(1)
			c.failed[id] = handlers.Dead(err)
		case handlers.ActionOf(err) == handlers.ActionSnooze:
			c.postpone(c.tasks[i], reasonOf(err), handler.ResultOf(err).Wait)
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
		case handlers.ActionOf(err) == handlers.ActionRetryAfter:
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

// interrupted reports whether a call ended because an event was canceled or the relay stops.
func interrupted(limit context.Context) bool {
	cause := context.Cause(limit)
	return errors.Is(cause, outbox.ErrCanceled) || errors.Is(cause, outbox.ErrDraining)
}

// reasonOf is the reason of a publisher that snoozes an event.
func reasonOf(snooze error) error {
	var r *handler.Result
	if errors.As(snooze, &r) && r.Err != nil {
		return r.Err
	}
	return errors.New("the publisher postpones the event")
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
	eventAtFault := !l.reached && len(l.down) == len(late) && c.f.late.atFault(late)
	wait := after
	switch {
	case l.reached, eventAtFault, len(l.down) == 0 && l.replied:
		c.f.circuits.succeeded(c.log, broker)
		delete(c.passes, broker)
	case len(l.down) == 0: // no result
	case len(l.down) == len(late) && target != broker && c.passes[broker].trial.IsZero():
		to := l.targets[target] // other targets may work
		to.blocked, to.after = l.down[0].err, after
	default:
		wait = c.f.circuits.failed(c.log, broker, l.down[0].err, after)
		delete(c.passes, broker)
	}
	for _, d := range l.down {
		t, to := c.tasks[d.at], l.targets[c.events[d.at].To]
		if l.reached && !to.passed { // the broker answers for other targets
			to.blocked, to.after = d.err, max(to.after, d.after)
		}
		if d.late && (l.reached || eventAtFault) && c.f.late.count(c.events[d.at].ID) {
			c.f.temporary.Add(1)
			c.failed[t.ID] = d.err
			continue
		}
		c.postpone(t, d.err, wait)
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

// span is the longest time for which an event is postponed without an attempt. The default backoff
// retries for as long.
const span = 72 * time.Hour

// postpone returns an event for later. No attempt counts within span, to whose end the wait is cut.
func (c *call) postpone(t *outbox.Task[json.RawMessage], err error, wait time.Duration) {
	now := time.Now()
	since := sinceOf(t, now)
	err = unavailableSince(since, err)
	left := span - now.Sub(since)
	if left < 0 {
		c.f.temporary.Add(1)
		c.failed[t.ID] = err
		return
	}
	c.f.unavailable.Add(1)
	if most := left + leastPause; wait > most {
		wait, err = most, fmt.Errorf("%w (the wait is cut to %v)", err, most.Round(time.Second))
	}
	c.failed[t.ID] = handlers.SnoozeWith(max(wait, leastPause), err)
}

const sincePrefix = "forward: unavailable since "

// unavailableSince is the last error of a postponed event. The next call, which may run in another
// process, reads the time from it.
func unavailableSince(since time.Time, err error) error {
	return fmt.Errorf("%s%s: %w", sincePrefix, since.UTC().Format(time.RFC3339), err)
}

// sinceOf is the time since which an event is postponed: the time in its last error, or now.
func sinceOf(t *outbox.Task[json.RawMessage], now time.Time) time.Time {
	before, text, found := strings.Cut(t.LastError, sincePrefix)
	text, _, _ = strings.Cut(text, ": ")
	since, err := time.Parse(time.RFC3339, text)
	redriven := t.Attempt == 1 && before == "" // its last error was a counted one
	if !found || err != nil || redriven || since.After(now) {
		return now
	}
	return since
}

const (
	// lateTimes is the number of calls without an answer for an event, while others had one, that count
	// as one attempt: the broker may have been lost in the middle of a call.
	lateTimes = 3
	// mostLate is the number of events that are remembered: other relays publish some of them.
	mostLate = 10_000
)

// lateEvents are events, by their ids, that had no answer while others had one. Such an event is at
// fault, even if it is the only event of a call.
type lateEvents struct {
	mu    sync.Mutex
	times map[string]int
}

// atFault reports whether each of these was late before.
func (l *lateEvents) atFault(late map[string]error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range late {
		if _, known := l.times[id]; !known {
			return false
		}
	}
	return len(late) > 0
}

// count notes that an event was late, and reports whether this counts as an attempt.
func (l *lateEvents) count(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times == nil || len(l.times) > mostLate {
		l.times = map[string]int{}
	}
	l.times[id] = (l.times[id] + 1) % lateTimes
	return l.times[id] == 0
}
