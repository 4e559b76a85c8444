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

// timer is when an idle dispatcher polls.
func (d *Dispatcher) timer(now time.Time) time.Time {
	next := d.nextPoll
	if !d.nextDue.IsZero() && d.nextDue.Before(next) {
		next = d.nextDue
	}
	if at := d.lanes.unblocked(now); !at.IsZero() && at.Before(next) {
		next = at
	}
	if again := d.polledAt.Add(pollFresh); d.lanes.heldBack() && again.Before(next) {
		next = again
	}
	earliest := d.polledAt.Add(pollPause)
	if next == d.nextDue && !d.nextDue.After(d.polledAt) {
		earliest = d.polledAt.Add(duePause) // others hold what is due
	}
	if next.Before(earliest) {
		next = earliest
	}
	return next
}

// emptyDelay is the pause after the latest poll, which led to no work.
func (d *Dispatcher) emptyDelay(now time.Time) time.Duration {
	if now.Before(d.suppressedUntil) {
		d.emptyPolls = min(d.emptyPolls, idleAfter-1)
		return burstPause
	}
	if d.emptyPolls <= idleAfter {
		return emptyPause
	}
	interval := d.params.PollInterval
	pause := min(emptyPause<<min(d.emptyPolls-idleAfter, 20), interval)
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
func (d *Dispatcher) withdraws() bool { return d.wakeRequest > 0 && (d.foundWork || d.wokeUp) }

func (d *Dispatcher) poll(now time.Time) {
	d.polling = true
	d.free--
	p := Poll{Began: now, Writable: d.outage.Active() || d.doubted(), Stranded: d.params.Once,
		Resting: d.lanes.resting(now)}
	d.promotions.unseen = false
	// Without LISTEN it requests nothing. Where no relay does, no Enqueue sends NOTIFY, and an app
	// may use PREPARE TRANSACTION.
	idle := d.emptyPolls >= idleAfter
	if d.now.Listening && !now.Before(d.suppressedUntil) &&
		(d.outage.Active() || idle && (d.wakeRequest == 0 || !now.Before(d.prolongAt))) {
		p.RequestWakeUp = prolongAfter + 2*d.params.PollInterval // until after that poll
	}
	if d.withdraws() {
		p.Withdraw = d.wakeRequest
	}
	d.foundWork, d.wokeUp = false, false
	// RunOnce ends when nothing is left, so it needs to see what is below the watermarks.
	if p.Full = d.params.Once || d.fullPolls.Due(now); !p.Full {
		p.Spans, p.FromRequest = d.lanes.spans(), d.promotions.requests.at
	}
	d.do(p)
}

func (d *Dispatcher) polled(e Polled) {
	now, began, r := d.now.Time, e.Poll.Began, e.Result
	d.polling, d.polledAt = false, now
	d.free++
	if e.Failure.Err != nil {
		d.pollFailed(e.Failure, began)
		return
	}
	if e.Poll.Withdraw > 0 {
		d.wakeRequest = 0
	}
	if e.Poll.Full {
		d.fullPolled(r)
	}
	d.pollsFailed = 0
	if d.outage.Active() {
		d.do(TellAnswer{})
	}
	d.unused, d.stranded = true, r.Stranded
	if r.WakeRequest > 0 && d.withdrawnAt.Before(began) {
		d.wakeRequest, d.prolongAt = r.WakeRequest, began.Add(prolongAfter)
	}
	d.nextDue = time.Time{}
	if r.Due {
		d.nextDue = now.Add(r.NextDue)
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
	d.fullPolls.Note(r.Took, now)
	for i, c := range d.lanes.all {
		if d.fullPolls.Quick() {
			c.starts.ForgetOld(now)
		}
		if r.Heads[i] == nil && c.running == 0 {
			d.works(c, &c.failing)
		}
	}
}
