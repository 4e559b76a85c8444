package relay

import (
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
)

// cameBack notes the end of a claim.
func (d *dispatcher) cameBack(c *lane) {
	d.claims--
	if c.h.Kind != handler.KindLeased {
		c.claiming--
	}
}

// notMade ends a claim that was not made: the slots or the rate of its type are used up, or tasks
// that cannot be read were set aside.
func (d *dispatcher) notMade(c *lane, claim plan.Claim) {
	d.cameBack(c)
	c.starts.NotMade(claim)
	c.credit = max(c.credit, 1)
	d.well(claim.Began)
}

// claimFailed ends a claim that failed.
func (d *dispatcher) claimFailed(c *lane, claim plan.Claim, err error) {
	d.cameBack(c)
	d.lanes.declined = false
	c.starts.Failed()
	d.laneFailed(c, claim.Limit, err, claim.Began)
}

// claimed ends a claim.
func (d *dispatcher) claimed(c *lane, claim plan.Claim, found plan.Found) {
	d.cameBack(c)
	d.took(c, claim, found)
	d.well(claim.Began)
}

// took notes what a claim found.
func (d *dispatcher) took(c *lane, claim plan.Claim, found plan.Found) {
	d.lanes.declined = false
	d.lanes.took(c, claim, found)
	if found.Tasks > 0 {
		c.failing.grow(time.Since(claim.Began))
		c.taskBytes = max(1+found.Bytes/found.Tasks, c.taskBytes/2)
		c.slotWait = 0
		d.found, d.hitUnknown, d.emptyPolls = true, false, 0
	}
}

// laneFailed notes that a claim of up to limit tasks failed, or (0) what is recorded of one. That is
// the lane's own matter. It is an outage if a poll fails as well, on another connection.
func (d *dispatcher) laneFailed(c *lane, limit int, err error, began time.Time) {
	now, f := time.Now(), &c.failing
	c.credit = max(c.credit, 1)
	switch {
	case d.ctx.Err() != nil: // its end failed it
	case d.once:
		if !f.shrink(limit, err, now.Sub(began)) {
			d.failed = err
		}
	case d.outage.Covers(began):
	case d.park(err, now):
	default:
		if f.note(err, began, now); f.shrink(limit, err, now.Sub(began)) {
			f.until = now
		}
		if fault := pgerr.Of(err); fault != pgerr.Refused && fault != pgerr.Others { // else PostgreSQL has answered
			d.doubtedAt = now
		}
		d.logFailures(c, f, now)
		d.tellFailures(c)
	}
}

// logFailures logs failures of claims or of results, if they are to be logged now.
func (d *dispatcher) logFailures(c *lane, f *failing, now time.Time) {
	if !f.logs(now) {
		return
	}
	log := d.r.Log.Warn
	if pgerr.Refusal(f.err) {
		log = d.r.Log.Error
	}
	log("outbox: tasks of this type cannot be claimed or recorded", "task_type", c.h.Type, "failures", f.times,
		"since", f.since.UTC().Format(time.RFC3339), "error", pgerr.LogText(f.err))
}

// laneWorks notes that a claim of the lane and all that is recorded of it came through, or that
// there is nothing to claim.
func (d *dispatcher) laneWorks(c *lane) {
	known := c.failing.fails()
	c.failing.forget()
	if known {
		d.tellFailures(c)
	}
}

// promotionFailed notes that PostgreSQL refused to promote what is due of a type. What is ready of it
// is claimed all the same.
func (d *dispatcher) promotionFailed(c *lane, err error, began time.Time) {
	if d.once {
		d.failed = err
		return
	}
	now := time.Now()
	c.promoting.note(err, began, now)
	if c.promoting.logs(now) {
		d.r.Log.Error("outbox: scheduled tasks of this type cannot be promoted", "task_type", c.h.Type, "failures", c.promoting.times,
			"since", c.promoting.since.UTC().Format(time.RFC3339), "error", pgerr.LogText(err))
	}
	d.tellFailures(c)
}

// promotionWorks notes that what is due of a type was promoted, or that nothing was.
func (d *dispatcher) promotionWorks(c *lane) {
	known := c.promoting.fails()
	c.promoting.forget()
	if known {
		d.tellFailures(c)
	}
}

// resultStuck hears that PostgreSQL refuses the result of a leased task again and again, though others
// of the type may be recorded.
func (d *dispatcher) resultStuck(h *handler.Handler, err error, began time.Time, first bool) {
	d.events <- func() {
		c, now := d.lanes.of(h), time.Now()
		if first {
			c.stuck++
		}
		switch {
		case d.outage.Covers(began):
			return
		case d.once:
			d.failed = err
			d.stopClaiming() // and drain, or it would wait for that result
			return
		}
		c.recording.times = max(c.recording.times, failingAfter-1)
		c.recording.note(err, began, now)
		d.logFailures(c, &c.recording, now)
		d.tellFailures(c)
	}
}

// unstuck notes that so many results are not tried any more.
func (d *dispatcher) unstuck(c *lane, results int) {
	if c.stuck -= results; results > 0 && c.stuck == 0 {
		c.recording = failing{logged: c.recording.logged}
		d.tellFailures(c)
	}
}

// headsPolled notes whether PostgreSQL refused to promote heads of ordering keys. Ready tasks are
// claimed in both cases.
func (d *dispatcher) headsPolled(refused error, began time.Time) {
	known, now := d.heads.times >= failingAfter, time.Now()
	switch {
	case refused == nil:
		if d.heads.forget(); known {
			d.headsFail(nil)
		}
	case d.once:
		d.failed = refused
	default:
		d.heads.note(refused, began, now)
		if d.heads.logs(now) {
			d.r.Log.Error("outbox: tasks with ordering keys cannot be promoted", "failures", d.heads.times,
				"since", d.heads.since.UTC().Format(time.RFC3339), "error", pgerr.LogText(refused))
		}
		if d.heads.times >= failingAfter {
			d.headsFail(&d.heads)
		}
	}
}

// tellFailures tells Health whether the type fails. The log names the failures before.
func (d *dispatcher) tellFailures(c *lane) {
	switch {
	case c.failing.fails():
		d.typeFails(c.h.Type, &c.failing)
	case c.recording.fails():
		d.typeFails(c.h.Type, &c.recording)
	case c.promoting.fails():
		d.typeFails(c.h.Type, &c.promoting)
	default:
		d.typeFails(c.h.Type, nil)
	}
}

// unconfirmed reports whether an error of a lane may be an outage, which nothing has denied yet.
func (d *dispatcher) unconfirmed() bool { return !d.doubtedAt.IsZero() }

// ran notes that tasks ran, which may have enqueued. After one with an ordering key a poll promotes
// the next.
func (d *dispatcher) ran(ordered bool) {
	d.found = true
	if ordered {
		d.nextDue = time.Now()
	}
}

// released takes workers back. ran: from tasks, which may have had slots of their type.
func (d *dispatcher) released(c *lane, workers int, ran bool) {
	c.running -= workers
	d.free += workers
	d.lanes.declined = false
	if ran {
		c.slotAt = time.Time{}
	}
}

// well notes that something came through that began at the given time.
func (d *dispatcher) well(began time.Time) {
	d.noOutage(began)
	now := time.Now()
	if !d.short.since.IsZero() && d.parked == 0 && began.Sub(d.short.tried) >= parkFor { // else the last slot may be refused again
		d.r.Log.Info("outbox: the server has connections for all workers again", "after", now.Sub(d.short.since).Round(time.Millisecond))
		d.short.since = time.Time{}
	}
}

// noOutage notes that PostgreSQL did something that began at the given time.
func (d *dispatcher) noOutage(began time.Time) {
	if began.After(d.doubtedAt) {
		d.doubtedAt = time.Time{}
	}
	if !d.mute {
		d.outage.OK(began, time.Now())
	}
}

// pollFailed slows the relay down. What may be the end of one connection only makes it poll again,
// for which it takes another.
func (d *dispatcher) pollFailed(err error, began time.Time) {
	now := time.Now()
	switch {
	case d.ctx.Err() != nil: // its end failed it
	case d.once:
		d.failed = err
	case d.park(err, now):
	case pgerr.Passing(err) && !d.outage.Active() && d.pollsFailed < passing:
		d.pollsFailed++
		d.r.Conns.Discard()
		d.polledAt, d.nextPoll = time.Time{}, now
	default:
		d.outage.Fail(err, began, now)
	}
}

// park gives up a slot for a while where the server only has no more connections, but not the last
// one.
func (d *dispatcher) park(err error, now time.Time) bool {
	if pgerr.Code(err) != "53300" || d.parked >= d.config.Workers-1 || d.outage.Active() {
		return false
	}
	if d.short.since.IsZero() {
		d.short.since = now
		d.r.Log.Warn("outbox: the server has no connection left for all workers; fewer work for now", "workers", d.config.Workers)
	}
	if d.parked == 0 {
		time.AfterFunc(parkFor, d.unpark)
	}
	d.parked, d.free = d.parked+1, d.free-1
	return true
}

// unpark lets one of the slots that were given up try again.
func (d *dispatcher) unpark() {
	d.events <- func() {
		d.parked, d.free = d.parked-1, d.free+1
		if d.short.tried = time.Now(); d.parked > 0 {
			time.AfterFunc(parkFor, d.unpark)
		}
	}
}
