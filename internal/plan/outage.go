package plan

import (
	"math/rand/v2"
	"time"
)

const (
	tryLeast = 100 * time.Millisecond // between two tries during an outage
	tryMost  = 300 * time.Millisecond // so a relay is back that soon without any sign
	askMost  = time.Second            // between two tries while PostgreSQL refuses them for good
)

// Outage paces a relay while PostgreSQL is down, restarting, read-only, out of connections or
// otherwise refusing, or the pool is busy: it waits after each failure, up to tryMost or askMost
// with jitter. It belongs to the dispatcher, as only its tries are frequent: a server that starts
// or is full forks a process for each.
type Outage struct {
	failures int  // 0: there is no outage
	lasting  bool // no waiting mends it
	busy     bool // the pool has no free connection
	since    time.Time
	tried    time.Time // when the latest pause began
	until    time.Time // when it ends
	ended    time.Time // the last outage
}

// Fail notes a failure of work that began at the given time, and reports whether it is to be told:
// an outage begins, is of another kind now, or lasts. Work that began before the end of an outage
// does not begin another.
func (o *Outage) Fail(began, now time.Time, f Failure) (tell bool) {
	if began.Before(o.ended) {
		return false
	}
	tell = o.failures == 0 || f.Lasting || o.lasting || f.Busy != o.busy
	if o.lasting, o.busy = f.Lasting, f.Busy; o.failures == 0 {
		o.failures, o.since = 1, now
	}
	if now.Before(o.until) {
		return tell // one of several that failed together
	}
	most := tryMost
	if f.Lasting {
		most = askMost
	}
	wait := min(tryLeast<<min(o.failures-1, 10), most)
	o.failures++
	o.tried, o.until = now, now.Add(wait/2+rand.N(wait/2))
	return tell
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

// OK notes a success of work that began at the given time. It ends an outage that began before, and
// returns how long that lasted.
func (o *Outage) OK(began, now time.Time) (lasted time.Duration, ends bool) {
	if o.failures == 0 || !began.After(o.since) {
		return 0, false
	}
	lasted = now.Sub(o.since)
	o.failures, o.until, o.ended = 0, time.Time{}, now
	return lasted, true
}

// Covers reports whether what began at the given time may have failed by an outage that is known.
func (o *Outage) Covers(began time.Time) bool { return o.failures > 0 || began.Before(o.ended) }

// Active reports whether there is an outage.
func (o *Outage) Active() bool { return o.failures > 0 }

// Wait is for how long the pause goes on.
func (o *Outage) Wait(now time.Time) time.Duration { return o.until.Sub(now) }

// EndPause ends the pause at once.
func (o *Outage) EndPause(now time.Time) { o.until = now }
