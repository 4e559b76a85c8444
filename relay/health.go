package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// What is wrong with a relay, as Health says it. An outage that lasts is ErrOutage also when the
// heartbeat is gone by then.
var (
	// ErrNotRunning: neither Run nor RunOnce is under way, or its context has ended and it claims
	// no more.
	ErrNotRunning = errors.New("relay: it is not running")
	// ErrOutage: PostgreSQL is unavailable: it is away, restarting, read-only or out of connections.
	// The relay tries again by itself.
	ErrOutage = errors.New("relay: PostgreSQL is unavailable")
	// ErrNoHeartbeat: none came through, at the start or for as long as leases last (10 s), though
	// no outage is known yet. The relay claims nothing.
	ErrNoHeartbeat = upkeep.ErrNoHeartbeat
	// ErrTypeFails: tasks of a type could not be claimed or recorded three times in a row, and no try
	// has succeeded since. Or a quarter of the latest claims failed, the last one within a minute.
	// The relay tries again by itself, and other types go on. The text names the type and the
	// SQLSTATE.
	ErrTypeFails = errors.New("relay: tasks of a type cannot be claimed or recorded")
	// ErrCopy: the database is a copy of the one that its tasks were enqueued in, made by a dump, a
	// template or logical replication; or it belongs to another Config.Environment. The relay claims
	// nothing and fires no schedule, so nothing is sent twice. Tasks can be enqueued. The text names
	// the original and the remedy: outbox adopt, after which the relay begins within seconds.
	// docs/guide/copies.md has more.
	ErrCopy = origin.ErrCopy
	// ErrOrderingFails: the next tasks of ordering keys could not be made ready three times in a row.
	// The relay tries again by itself, and ready tasks go on. The text has the SQLSTATE.
	ErrOrderingFails = errors.New("relay: the next tasks of ordering keys cannot be made ready")
)

// life is the state of one run that Health reads.
type life struct {
	claiming context.Context        // of Run: it claims no more after its end
	leaseEnd func() time.Time       // unless a heartbeat comes through; zero if none has
	outage   time.Time              // when it began; zero: there is none
	failing  map[string]typeFailure // by type
	copied   error                  // the database is a copy
	ordering error                  // of the next tasks of ordering keys
	hidden   error                  // row level security hides rows
}

type typeFailure struct {
	err   error
	until time.Time // Health says so; zero: until it works
}

// Health is nil while the relay runs and claims: its latest heartbeat came through within the last
// 10 s, by its own clock, no outage is known, and no type fails again and again. Else it is an
// ErrNotRunning, ErrOutage, ErrCopy, schema.ErrRowSecurity (within half a minute), ErrNoHeartbeat,
// ErrTypeFails or ErrOrderingFails, with the time of its beginning if that is known. It sends no
// statement and does not block: an idle relay notices an outage with its next poll, within two
// seconds or so at the default PollInterval, and a server that does not answer within 10 s. The
// text has neither a DSN, nor a host, nor a payload, nor PostgreSQL's words, which are in the log.
//
// It is for readiness. A liveness probe that restarts the process should not use it: a relay
// survives outages by itself, and what it runs would be lost with the process.
func (r *Relay) Health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.life
	switch {
	case l == nil:
		return ErrNotRunning
	case l.copied != nil && l.outage.IsZero():
		return l.copied
	case l.claiming.Err() != nil:
		return fmt.Errorf("%w any more: it is stopping", ErrNotRunning)
	case !l.outage.IsZero():
		return fmt.Errorf("%w since %s (%v)", ErrOutage, l.outage.UTC().Format(time.RFC3339), time.Since(l.outage).Round(100*time.Millisecond))
	}
	switch end := l.leaseEnd(); {
	case l.hidden != nil:
		return l.hidden
	case end.IsZero():
		return fmt.Errorf("%w yet, %v after the start", ErrNoHeartbeat, time.Since(r.born).Round(100*time.Millisecond))
	case !time.Now().Before(end):
		return fmt.Errorf("%w for %v", ErrNoHeartbeat, (time.Since(end) + upkeep.LeaseDuration).Round(100*time.Millisecond))
	}
	failing := []error{l.ordering}
	for _, taskType := range slices.Sorted(maps.Keys(l.failing)) {
		if f := l.failing[taskType]; f.until.IsZero() || time.Now().Before(f.until) {
			failing = append(failing, f.err)
		}
	}
	return errors.Join(failing...)
}

// live begins the life of a run; the returned function ends it.
func (r *Relay) live(claiming context.Context) (end func()) {
	r.mu.Lock()
	r.life = &life{claiming: claiming, leaseEnd: r.heart.LeaseEnd, failing: map[string]typeFailure{}}
	r.mu.Unlock()
	r.observers.tellChange(Started, r.born)
	return func() {
		r.mu.Lock()
		outage := !r.life.outage.IsZero()
		r.life = nil
		r.mu.Unlock()
		now := time.Now()
		if outage {
			r.observers.tellChange(OutageEnded, now)
		}
		r.observers.tellChange(Stopped, now)
	}
}

// outageChanged hears of the beginning and end of an outage.
func (r *Relay) outageChanged(began bool, at time.Time) {
	event, since := OutageEnded, time.Time{}
	if began {
		event, since = OutageBegan, at
	}
	r.mu.Lock()
	r.life.outage = since
	r.mu.Unlock()
	r.observers.tellChange(event, at)
}

// copied hears that the database is a copy; nil: it was adopted.
func (r *Relay) copied(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life.copied = err
}

// typeFails hears of the failures of a type; nil: it works again.
func (r *Relay) typeFails(taskType string, f *failing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f == nil {
		delete(r.life.failing, taskType)
		return
	}
	failure := typeFailure{err: fmt.Errorf("%w: %q %s", ErrTypeFails, taskType, f.text())}
	if f.times < failingAfter {
		failure.until = f.at.Add(shareLasts)
	}
	r.life.failing[taskType] = failure
}

// orderingFails hears of failures to make the next tasks of ordering keys ready; nil: it works again.
func (r *Relay) orderingFails(f *failing) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.life.ordering = nil
	if f != nil {
		r.life.ordering = fmt.Errorf("%w: %s", ErrOrderingFails, f.text())
	}
}

// rowsHidden hears whether row level security hides rows, and returns what it heard before.
func (r *Relay) rowsHidden(hidden error) (before error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life == nil {
		return nil
	}
	before, r.life.hidden = r.life.hidden, hidden
	return before
}
