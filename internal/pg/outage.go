package pg

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/pgerr"
)

const (
	tryLeast = 100 * time.Millisecond // between two tries of the dispatcher during an outage
	tryMost  = 300 * time.Millisecond // so a relay is back that soon without any sign
)

// Outage paces a relay whose database is gone, restarting, read-only, out of connections or
// otherwise refusing: it waits after each failure, up to tryMost with jitter, and logs once when it
// begins and once when it ends. It belongs to the dispatcher, whose tries are the only frequent
// ones of a relay: a server that starts or is full forks a process for each.
type Outage struct {
	log     *slog.Logger
	changed func(began bool, at time.Time)
	backoff retry.Backoff // nil without an outage
	since   time.Time
	tried   time.Time // when the latest pause began
	until   time.Time // when it ends
	ended   time.Time // the last one
}

// NewOutage tells changed when an outage begins and ends.
func NewOutage(log *slog.Logger, changed func(began bool, at time.Time)) Outage {
	return Outage{log: log, changed: changed}
}

// Fail notes a failure of something that began at the given time. One that began before the end of
// an outage does not begin another.
func (o *Outage) Fail(err error, began, now time.Time) {
	if began.Before(o.ended) {
		return
	}
	if o.backoff == nil {
		o.backoff = retry.WithCappedDuration(tryMost, retry.NewExponential(tryLeast))
		o.since = now
		o.log.Warn("outbox: PostgreSQL is unavailable; the relay waits and tries again", "error", pgerr.LogText(err))
		o.changed(true, now)
	}
	if now.Before(o.until) {
		return // one of several that failed together
	}
	wait, _ := o.backoff.Next()
	o.tried, o.until = now, now.Add(wait/2+rand.N(wait/2))
}

// Hasten ends the pause soon, at a sign that PostgreSQL is back. The sign may be of another
// database of the process, and hundreds of relays may see it at once.
func (o *Outage) Hasten(now time.Time) {
	soon := now
	if least := o.tried.Add(tryLeast); soon.Before(least) {
		soon = least
	}
	if soon = soon.Add(rand.N(tryLeast)); soon.Before(o.until) {
		o.until = soon
	}
}

// OK notes a success. What began before an outage does not end it.
func (o *Outage) OK(began, now time.Time) {
	if o.backoff != nil && began.After(o.since) {
		o.log.Info("outbox: PostgreSQL is available again", "after", now.Sub(o.since).Round(time.Millisecond))
		o.backoff, o.until, o.ended = nil, time.Time{}, now
		o.changed(false, now)
	}
}

// Covers reports whether what began at the given time may have failed by an outage that is known.
func (o *Outage) Covers(began time.Time) bool { return o.backoff != nil || began.Before(o.ended) }

// Active reports whether there is an outage.
func (o *Outage) Active() bool { return o.backoff != nil }

// Wait is for how long the pause goes on.
func (o *Outage) Wait(now time.Time) time.Duration { return o.until.Sub(now) }

// EndPause ends the pause at once.
func (o *Outage) EndPause(now time.Time) { o.until = now }
