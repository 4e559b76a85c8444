package plan

import "time"

// namedPause is how long after the claim of a named task the poll follows that its wake-up asks for.
const namedPause = 5 * time.Millisecond

// wokenUp notes a wake-up. When wake-ups come faster than a poll answers them, say because other relays
// are busy with the tasks of many enqueuers, they cost those more than they bring. The relay polls by
// itself then, and suppresses wake-ups for a while.
func (d *Dispatcher) wokenUp(named string) {
	now := d.now.Time
	if d.burst++; now.Sub(d.wokeUpAt) >= burstPause {
		d.burst = 0
	}
	if d.burst >= burstSize {
		d.suppressedUntil = now.Add(suppressFor)
	}
	d.wokeUp, d.wokeUpAt, d.emptyPolls, d.nextPoll = true, now, 0, now
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
		d.noHeartbeat || d.now.NoHeartbeat.Err != nil || d.params.Once || d.polling || d.claims > 0 || d.free <= 1 ||
		d.lanes.bound != nil || now.Before(d.suppressedUntil) {
		return
	}
	if d.lanes.room(c) > 0 && !c.blockedUntil().After(now) && !d.lanes.gathers(c, now) {
		limit, exact := c.limit(1)
		d.start(c, c.starts.Named(class, limit, exact, now), 1)
		d.nextPoll = now.Add(namedPause)
	}
}

// requestWithdrawn notes that another relay may have withdrawn the wake-up request.
func (d *Dispatcher) requestWithdrawn() {
	if d.emptyPolls >= idleAfter { // it relies on wake-ups
		now := d.now.Time
		d.wakeRequest, d.withdrawnAt, d.emptyPolls, d.nextPoll = 0, now, idleAfter, now
	}
}

func (d *Dispatcher) scheduled(at time.Time) {
	if !at.IsZero() {
		d.dueAt(at)
	}
}
