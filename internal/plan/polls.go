package plan

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	pollAgain    = 20 * time.Millisecond // how old it is when a busy relay polls for work of other types
	pollPause    = 2 * time.Millisecond  // between polls that wake-ups or timers ask for
	duePause     = 20 * time.Millisecond // where a task was due by the last poll
	emptyPause   = 5 * time.Millisecond  // between the first polls that find nothing
	idleAfter    = 6                     // empty polls in a row: until then, what was being inserted may still commit
	prolongAfter = 30 * time.Second      // an idle relay sets its wake-up request anew with the first poll after that
	burstSize    = 4                     // wake-ups, each within burstPause of the wake-up before,
	burstPause   = 10 * time.Millisecond
	suppressFor  = 4 * time.Second // let a relay poll each burstPause instead for so long
)

// polls are what is known of polls, of which one is under way at most.
type polls struct {
	underway  bool
	endedAt   time.Time
	full      FullPolls
	failed    int       // in a row
	foundWork bool      // since the last poll
	unused    bool      // the last poll has not led to work yet
	empty     int       // polls in a row that led to no work
	next      time.Time // the next poll of an idle relay
	due       time.Time // of a scheduled task; zero if none is known
	stranded  bool      // RunOnce: dead relays hold leases, to be taken over
}

// timer is when an idle dispatcher polls.
func (d *Dispatcher) timer(now time.Time) time.Time {
	next := d.polls.next
	if !d.polls.due.IsZero() && d.polls.due.Before(next) {
		next = d.polls.due
	}
	if at := d.lanes.unblocked(now); !at.IsZero() && at.Before(next) {
		next = at
	}
	if again := d.polls.endedAt.Add(pollFresh); d.lanes.heldBack() && again.Before(next) {
		next = again
	}
	earliest := d.polls.endedAt.Add(pollPause)
	if next == d.polls.due && !d.polls.due.After(d.polls.endedAt) {
		earliest = d.polls.endedAt.Add(duePause) // others hold what is due
	}
	if next.Before(earliest) {
		next = earliest
	}
	return next
}

// emptyDelay is the pause after the latest poll, which led to no work.
func (d *Dispatcher) emptyDelay(now time.Time) time.Duration {
	if now.Before(d.wakeups.suppressedUntil) {
		d.polls.empty = min(d.polls.empty, idleAfter-1)
		return burstPause
	}
	if d.polls.empty <= idleAfter {
		return emptyPause
	}
	interval := d.params.PollInterval
	pause := min(emptyPause<<min(d.polls.empty-idleAfter, 20), interval)
	if pause == interval {
		pause = interval - rand.N(interval/32)
		d.do(ReleaseConns{}) // the app may need them more
	}
	if d.lanes.capped() {
		pause = min(pause, pollAgain) // busy with one type: others must not wait for a poll
	}
	return pause
}

// withdraws reports whether the wake-up request is to be withdrawn: the relay has work, or is about
// to see.
func (d *Dispatcher) withdraws() bool {
	return d.wakeups.request > 0 && (d.polls.foundWork || d.wakeups.unanswered)
}

func (d *Dispatcher) poll(now time.Time) {
	d.polls.underway = true
	d.free--
	p := Poll{Began: now, Writable: d.outage.Active() || d.doubted(), Stranded: d.params.Once,
		Resting: d.lanes.resting(now)}
	d.promotions.unseen = false
	// Without LISTEN it requests nothing. Where no relay does, no Enqueue sends NOTIFY, and an app
	// may use PREPARE TRANSACTION.
	idle := d.polls.empty >= idleAfter
	if d.now.Listening && !now.Before(d.wakeups.suppressedUntil) &&
		(d.outage.Active() || idle && (d.wakeups.request == 0 || !now.Before(d.wakeups.prolongAt))) {
		p.RequestWakeUp = prolongAfter + 2*d.params.PollInterval // until after that poll
	}
	if d.withdraws() {
		p.Withdraw = d.wakeups.request
	}
	d.polls.foundWork, d.wakeups.unanswered = false, false
	// RunOnce ends when nothing is left, so it needs to see what is below the watermarks.
	if p.Full = d.params.Once || d.polls.full.Due(now); !p.Full {
		p.Spans, p.FromRequest = d.lanes.spans(), d.promotions.requests.at
	}
	d.do(p)
}

func (d *Dispatcher) polled(e Polled) {
	now, began, r := d.now.Time, e.Poll.Began, e.Result
	d.polls.underway, d.polls.endedAt = false, now
	d.free++
	if e.Failure.Err != nil {
		d.pollFailed(e.Failure, began)
		return
	}
	if e.Poll.Withdraw > 0 {
		d.wakeups.request = 0
	}
	if e.Poll.Full {
		d.fullPolled(r)
	}
	d.polls.failed = 0
	if d.outage.Active() {
		d.do(TellAnswer{})
	}
	d.polls.unused, d.polls.stranded = true, r.Stranded
	if r.WakeRequest > 0 && d.wakeups.withdrawnAt.Before(began) {
		d.wakeups.request, d.wakeups.prolongAt = r.WakeRequest, began.Add(prolongAfter)
	}
	d.polls.due = time.Time{}
	if r.Due {
		d.polls.due = now.Add(r.NextDue)
	}
	for i, c := range d.lanes.all {
		c.polled(r.Heads[i], now)
		if !slices.Contains(r.DueTypes, c.of.Name) && !began.Before(c.promoting.until) {
			d.works(c, &c.promoting)
		}
	}
	d.promotablePolled(r, began)
	d.noOutage(began)
	if !d.lanes.choosable(now) { // else a claim may find too few connections
		d.succeeded(began)
	}
}

// fullPolled notes a full poll: where it takes no time, claims begin at the head; in an empty lane no
// claim can fail.
func (d *Dispatcher) fullPolled(r PollResult) {
	now := d.now.Time
	d.polls.full.Note(r.Took, now)
	for i, c := range d.lanes.all {
		if d.polls.full.Quick() {
			c.starts.ForgetOld(now)
		}
		if r.Heads[i] == nil && c.running == 0 {
			d.works(c, &c.failing)
		}
	}
}

const (
	quickPoll     = 2 * time.Millisecond // a full poll that takes less costs nothing
	fullPollShare = 50                   // else it takes one part of so many of the time, as it slows down claims,
	maxPollGap    = 5 * time.Second      // and is made at least so often
	sampledPolls  = 10                   // the least of so many tells what one takes: a session's first one plans
)

// FullPolls decides when a poll reads lanes from their heads.
type FullPolls struct {
	took [sampledPolls]time.Duration // of the latest
	n    int
	last time.Time
}

// Due reports whether the next poll is to be a full one.
func (s *FullPolls) Due(now time.Time) bool {
	return s.Quick() || now.Sub(s.last) >= min(fullPollShare*slices.Min(s.took[:]), maxPollGap)
}

// Quick reports whether full polls cost nothing.
func (s *FullPolls) Quick() bool { return slices.Min(s.took[:]) < quickPoll }

// Note notes what a full poll took.
func (s *FullPolls) Note(took time.Duration, now time.Time) {
	s.took[s.n%sampledPolls], s.last = took, now
	s.n++
}

// namedPause is how long after the claim of a named task the poll follows that its wake-up asks for.
const namedPause = 5 * time.Millisecond

// wakeups are the relay's request for wake-ups, and those that came.
type wakeups struct {
	request         int64     // as it was set; 0 if none
	prolongAt       time.Time // when an idle relay sets it anew
	withdrawnAt     time.Time // when another relay last did
	unanswered      bool      // one came since the last poll began
	at              time.Time // of the last one
	burst           int       // in a row that came soon after each other
	suppressedUntil time.Time
}

// wokenUp notes a wake-up. When wake-ups come faster than a poll answers them, say because other relays
// are busy with the tasks of many enqueuers, they cost those more than they bring. The relay polls by
// itself then, and suppresses wake-ups for a while.
func (d *Dispatcher) wokenUp(named string) {
	now := d.now.Time
	if d.wakeups.burst++; now.Sub(d.wakeups.at) >= burstPause {
		d.wakeups.burst = 0
	}
	if d.wakeups.burst >= burstSize {
		d.wakeups.suppressedUntil = now.Add(suppressFor)
	}
	d.wakeups.unanswered, d.wakeups.at, d.polls.empty, d.polls.next = true, now, 0, now
	d.outage.Hasten(now)
	if named != "" {
		d.claimNamed(named, now)
	}
}

// claimNamed claims the task that a wake-up has named from a lane that was idle, without a poll
// before: that would be a round trip more until its handler starts.
func (d *Dispatcher) claimNamed(task string, now time.Time) {
	c, class := d.lanes.named(task)
	if c == nil || d.stopped || d.now.Stopping || now.Before(c.failing.until) || d.outage.Active() ||
		d.noHeartbeat || d.now.NoHeartbeat.Err != nil || d.params.Once || d.polls.underway || d.claims > 0 || d.free <= 1 ||
		d.lanes.bound != nil || now.Before(d.wakeups.suppressedUntil) {
		return
	}
	if d.lanes.room(c) > 0 && !c.blockedUntil().After(now) && !d.lanes.gathers(c, now) {
		limit, exact := c.limit(1)
		d.start(c, c.starts.Named(class, limit, exact, now), 1)
		d.polls.next = now.Add(namedPause)
	}
}

// requestWithdrawn notes that another relay may have withdrawn the wake-up request.
func (d *Dispatcher) requestWithdrawn() {
	if d.polls.empty >= idleAfter { // it relies on wake-ups
		now := d.now.Time
		d.wakeups.request, d.wakeups.withdrawnAt, d.polls.empty, d.polls.next = 0, now, idleAfter, now
	}
}

func (d *Dispatcher) scheduled(at time.Time) {
	if !at.IsZero() {
		d.dueAt(at)
	}
}
