package plan

import (
	"math/rand/v2"
	"time"
)

const (
	passing  = 3                      // failed polls in a row that may be those of single connections
	retryFor = 500 * time.Millisecond // until one more slot may try again to get a connection
)

// fewConns are the slots that are withheld, as the server has too few connections.
type fewConns struct {
	withheld       int
	retryAt        time.Time // when one of them may try again
	since, triedAt time.Time // since when it has too few, zero if it has enough; when the last slot tried again
}

// retryConn gives back a withheld slot when its time has come.
func (d *Dispatcher) retryConn() {
	f, now := &d.conns, d.now.Time
	if f.withheld > 0 && !now.Before(f.retryAt) {
		f.withheld, f.triedAt, f.retryAt = f.withheld-1, now, now.Add(retryFor)
		d.free++
	}
}

// withhold gives up a slot for a while where the server only has no more connections, but not the last
// slot.
func (d *Dispatcher) withhold(f Failure) bool {
	if !f.NoConnection || d.conns.withheld >= d.params.Workers-1 || d.outage.Active() {
		return false
	}
	now := d.now.Time
	if d.conns.since.IsZero() {
		d.conns.since = now
		d.do(FewConns{d.params.Workers})
	}
	if d.conns.withheld == 0 {
		d.conns.retryAt = now.Add(retryFor)
	}
	d.conns.withheld++
	d.free--
	return true
}

// succeeded notes a success of work that began at the given time.
func (d *Dispatcher) succeeded(began time.Time) {
	d.noOutage(began)
	f := &d.conns
	if !f.since.IsZero() && f.withheld == 0 && began.Sub(f.triedAt) >= retryFor { // the last slot has a connection
		d.do(EnoughConns{d.now.Time.Sub(f.since)})
		f.since = time.Time{}
	}
}

// noOutage notes that PostgreSQL did work that began at the given time.
func (d *Dispatcher) noOutage(began time.Time) {
	if began.After(d.doubtedAt) {
		d.doubtedAt = time.Time{}
	}
	if d.noHeartbeat {
		if f := d.now.NoHeartbeat; f.Err != nil && d.outage.Active() { // it is the heartbeat's alone
			d.outageFails(f, d.now.Time)
		}
		return
	}
	if lasted, ends := d.outage.OK(began, d.now.Time); ends {
		d.do(OutageEnded{lasted, d.now.Time})
	}
}

func (d *Dispatcher) outageFails(f Failure, began time.Time) {
	if d.outage.Fail(began, d.now.Time, f) {
		d.do(OutageBegan{f.Err, f.Lasting, d.now.Time})
	}
}

// doubted reports whether an error of a lane may be an outage, which no success has denied yet.
func (d *Dispatcher) doubted() bool { return !d.doubtedAt.IsZero() }

// pollFailed slows the relay down. A failure that may be the end of one connection only makes it poll again,
// for which it takes another.
func (d *Dispatcher) pollFailed(f Failure, began time.Time) {
	switch {
	case d.now.Stopping: // its end failed it
	case d.params.Once:
		d.failed = f.Err
	case d.withhold(f):
	case f.Passing && !d.outage.Away() && d.polls.failed < passing:
		d.polls.failed++
		d.do(DiscardConns{})
		d.polls.endedAt, d.polls.next = time.Time{}, d.now.Time
	default:
		if !f.Passing {
			d.polls.failed = 0
		}
		d.outageFails(f, began)
	}
}

// laneFailed notes that a claim of up to limit tasks failed, or (0) what is recorded of one. That is
// the lane's own matter. It is an outage if a poll fails as well, on another connection.
func (d *Dispatcher) laneFailed(c *lane, limit int, failure Failure, began time.Time) {
	now, f := d.now.Time, &c.failing
	c.credit = max(c.credit, 1)
	switch {
	case d.now.Stopping: // its end failed it
	case d.params.Once:
		if !f.shrink(limit, failure, now.Sub(began), d.params.StatementTimeout) {
			d.failed = failure.Err
		}
	case d.outage.Covers(began):
	case d.withhold(failure):
	default:
		if f.note(failure, began, now); f.shrink(limit, failure, now.Sub(began), d.params.StatementTimeout) {
			f.until = now
		}
		if !failure.Answered {
			d.doubtedAt = now
		}
		d.logFailures(Claims, c.of.Name, f)
		d.tellFailures(c)
	}
}

func (d *Dispatcher) resultStuck(e ResultStuck) {
	c := d.lanes.all[e.Lane]
	if e.First {
		c.results.stuck++
	}
	switch {
	case d.outage.Covers(e.Began):
		return
	case d.params.Once:
		d.failed = e.Failure.Err
		d.do(StopClaiming{}) // and drain, or it would wait for that result
		return
	}
	c.results.failing.Times = max(c.results.failing.Times, failingAfter-1)
	c.results.failing.note(e.Failure, e.Began, d.now.Time)
	d.logFailures(Claims, c.of.Name, &c.results.failing)
	d.tellFailures(c)
}

// works notes a success of a lane's claims with all that is recorded of them, or of its promotions; or
// that there is nothing to do.
func (d *Dispatcher) works(c *lane, f *Failing) {
	known := f.fails()
	f.succeeded()
	if known {
		d.tellFailures(c)
	}
}

// logFailures logs failures, if they are to be logged now.
func (d *Dispatcher) logFailures(w Work, name string, f *Failing) {
	if f.logs(d.now.Time) {
		d.do(LogFailures{w, name, f})
	}
}

// tellFailures tells Health whether the type fails. The log names the failures before.
func (d *Dispatcher) tellFailures(c *lane) {
	for _, f := range [...]*Failing{&c.failing, &c.results.failing, &c.promoting} {
		if f.fails() {
			d.do(TellFailures{c.of.Name, f})
			return
		}
	}
	d.do(TellFailures{c.of.Name, nil})
}

// What a lane does after a failure of its own.
const (
	restLeast     = 20 * time.Millisecond // it rests, each time twice as long,
	RestMost      = time.Second           // but no longer, and so long at once where PostgreSQL refuses it
	failingAfter  = 3                     // so many failures in a row are logged, and reported by Health
	failingShare  = .25                   // and so is this share of failed claims,
	shareOf       = 16                    // among about so many of the latest
	failureLogged = time.Minute           // at most once in
	largestClaim  = 1 << 16
)

// Failure is an error and its class.
type Failure struct {
	Err          error
	Refused      bool // PostgreSQL refuses the statement itself
	Answered     bool // PostgreSQL has answered, so the error is no sign of an outage
	Passing      bool // it may be that of a single connection
	NoConnection bool // the server has no connection left
	Divisible    bool // a smaller claim may succeed
	Lasting      bool // PostgreSQL has answered, and no waiting mends it
	Named        bool // and the error names what is missing
	Busy         bool // the relay's pool has no free connection
}

// Failing has the failures since the last success, of a lane's claims and results or of promotions.
type Failing struct {
	Times     int       // in a row
	Since, At time.Time // of the first and the latest
	Latest    Failure
	share     float64   // of failures among the latest claims: a moving average, with failingAfter in a row at most
	until     time.Time // the lane rests
	logged    time.Time // also before its last success
	most      int       // tasks of a claim, since a larger one failed; 0 is no limit
}

// note notes a failure of work that began at the given time.
func (f *Failing) note(failure Failure, began, now time.Time) {
	if began.Before(f.At) {
		return // one of several that failed together
	}
	if f.Since.IsZero() {
		f.Since = now
	}
	if f.Times++; f.Times <= failingAfter { // else an outage would be seen long after its end
		f.share += (1 - f.share) / shareOf
	}
	f.At, f.Latest = now, failure
	rest := RestMost
	if !failure.Refused {
		rest = min(restLeast<<min(f.Times-1, 10), RestMost)
	}
	f.until = now.Add(rest)
}

// succeeded notes a success, which ends failures in a row. It only decreases the share.
func (f *Failing) succeeded() {
	next := Failing{logged: f.logged, most: f.most, share: f.share * (1 - 1./shareOf)}
	if next.often() {
		next.Since, next.At, next.Latest = f.Since, f.At, f.Latest
	}
	*f = next
}

// InARow reports whether too many failures follow each other. One is enough where the error names
// what is missing.
func (f *Failing) InARow() bool { return f.Times >= failingAfter || f.Times > 0 && f.Latest.Named }

// often reports whether the share of failures is too large.
func (f *Failing) often() bool { return f.share >= failingShare }

// fails reports whether the log and Health name the lane.
func (f *Failing) fails() bool { return f.InARow() || f.often() }

// logs reports whether the failures are to be logged now.
func (f *Failing) logs(now time.Time) bool {
	if !f.fails() && !f.Latest.Refused || now.Sub(f.logged) < failureLogged {
		return false
	}
	f.logged = now
	return true
}

// shrink makes the next claim half as large as the claim of so many tasks that failed, or a quarter if
// that was slow, as each try is slow then. It reports whether that is possible: the next claim may succeed.
func (f *Failing) shrink(limit int, failure Failure, took, slow time.Duration) bool {
	if limit <= 1 || !failure.Divisible {
		return false
	}
	f.most = limit / 2
	if took >= slow/2 {
		f.most = max(limit/4, 1)
	}
	return true
}

// grow lets the next claim be larger, after a claim that was fast.
func (f *Failing) grow(took, slow time.Duration) {
	if f.most > 0 && took < slow/4 {
		if f.most *= 2; f.most > largestClaim {
			f.most = 0
		}
	}
}

// upTo is how many of so many tasks a claim may take.
func (f *Failing) upTo(limit int) int {
	if f.most > 0 {
		return min(f.most, limit)
	}
	return limit
}

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

// Away reports whether there is an outage in which PostgreSQL does not answer, as far as is known.
func (o *Outage) Away() bool { return o.Active() && !o.lasting && !o.busy }

// Wait is for how long the pause goes on.
func (o *Outage) Wait(now time.Time) time.Duration { return o.until.Sub(now) }

// EndPause ends the pause at once.
func (o *Outage) EndPause(now time.Time) { o.until = now }
