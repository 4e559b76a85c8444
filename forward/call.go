package forward

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
)

// call is one call of the handler.
type call struct {
	f      *Forwarder
	log    *slog.Logger
	failed handlers.BatchError

	passes map[string]pass // by target; broker is among them
	events []*Event
	tasks  []*outbox.Task[json.RawMessage] // of the events
}

// choose puts off the events whose target's circuit is open, and has the others sent. Of a circuit
// whose pause is over one event is sent, as its trial.
func (c *call) choose(tasks []*outbox.Task[json.RawMessage]) {
	for _, t := range tasks {
		e, err := c.f.newEvent(t)
		if err != nil {
			c.f.permanent.Add(1)
			c.failed[t.ID] = handlers.Dead(err)
			continue
		}
		if p, known := c.passes[e.To]; !known || !p.trial.IsZero() {
			p, refused := c.f.circuits.enter(e.To)
			if refused != nil {
				c.putOff(t, refused.err, refused.wait)
				continue
			}
			c.passes[e.To] = p
		}
		c.events, c.tasks = append(c.events, e), append(c.tasks, t)
	}
}

// leave ends the trials that have no result.
func (c *call) leave() {
	for _, p := range c.passes {
		c.f.circuits.left(p)
	}
}

// span is for how long an event may be put off without an attempt: as long as the default backoff
// has it retried.
const span = 72 * time.Hour

// putOff has an event wait, without an attempt for the time of span.
func (c *call) putOff(t *outbox.Task[json.RawMessage], err error, wait time.Duration) {
	now := time.Now()
	since := sinceOf(t, now)
	err = unavailableSince(since, err)
	if now.Sub(since) > span {
		c.f.temporary.Add(1)
		c.failed[t.ID] = err
		return
	}
	c.f.unavailable.Add(1)
	c.failed[t.ID] = handlers.SnoozeWith(max(wait, leastPause), err)
}

const sincePrefix = "forward: unavailable since "

// unavailableSince is the last error of an event that was put off. The next call reads since from
// it, as it may run in another process.
func unavailableSince(since time.Time, err error) error {
	return fmt.Errorf("%s%s: %w", sincePrefix, since.UTC().Format(time.RFC3339), err)
}

// sinceOf is since when an event is put off: now, unless its last error says otherwise.
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
