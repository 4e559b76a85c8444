package relay

import (
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// refuseFor is how long a lane rests after PostgreSQL refused a claim of it, or what is recorded of
// one.
const (
	refuseFor     = time.Second
	refusalLogged = time.Minute // at most once in
)

// cameBack notes the end of a claim.
func (d *dispatcher) cameBack(c *lane) {
	d.claims--
	if c.h.Kind != handler.KindLeased {
		c.claiming--
	}
}

// notMade ends a claim that was not made, as the slots or the rate of its type are used up.
func (d *dispatcher) notMade(c *lane, began time.Time) {
	d.cameBack(c)
	c.credit = max(c.credit, 1)
	d.well(began)
}

// claimed ends a claim.
func (d *dispatcher) claimed(c *lane, t taken, err error, began time.Time) {
	d.cameBack(c)
	d.lanes.declined = false
	if err != nil {
		c.watermarks.NoteShort()
		if !d.once && pgerr.Refusal(err) {
			d.refused(c, err)
			return
		}
		d.fail(err, began)
		return
	}
	d.took(c, t)
	d.well(began)
}

// took notes what a claim found.
func (d *dispatcher) took(c *lane, t taken) {
	d.lanes.declined = false
	d.lanes.took(c, t)
	if t.tasks > 0 {
		c.slotWait = 0
		d.found, d.hitUnknown, d.emptyPolls = true, false, 0
	}
}

func (d *dispatcher) refused(c *lane, err error) {
	now := time.Now()
	c.refusedUntil, c.head, c.credit = now.Add(refuseFor), nil, 0
	if now.Sub(c.refusalAt) >= refusalLogged {
		c.refusalAt = now
		d.r.Log.Error("outbox: tasks of this type cannot be claimed or recorded", "task_type", c.h.Type, "error", pgerr.LogText(err))
	}
}

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
	if began.After(d.broke) {
		d.broken = 0
	}
	now := time.Now()
	if !d.mute {
		d.outage.OK(began, now)
	}
	if !d.short.since.IsZero() && d.parked == 0 && began.Sub(d.short.tried) >= parkFor { // else the last slot may be refused again
		d.r.Log.Info("outbox: the server has connections for all workers again", "after", now.Sub(d.short.since).Round(time.Millisecond))
		d.short.since = time.Time{}
	}
}

// fail slows the relay down. What may be the end of one connection only makes it poll again, for
// which it takes another. Where the server only has no more connections, it gives up a slot for a
// while, but not the last one.
func (d *dispatcher) fail(err error, began time.Time) {
	now := time.Now()
	if d.ctx.Err() != nil {
		return // it is the end of ctx that failed it
	}
	if d.once {
		d.failed = err
		return
	}
	if pgerr.Code(err) == "53300" && d.parked < d.config.Workers-1 && !d.outage.Active() {
		if d.short.since.IsZero() {
			d.short.since = now
			d.r.Log.Warn("outbox: the server has no connection left for all workers; fewer work for now", "workers", d.config.Workers)
		}
		if d.parked == 0 {
			time.AfterFunc(parkFor, d.unpark)
		}
		d.parked, d.free = d.parked+1, d.free-1
		return
	}
	if pgerr.Passing(err) && !d.outage.Active() && d.broken < passing {
		if began.After(d.broke) { // else it is one of several that failed together
			d.broken, d.broke = d.broken+1, now
			d.r.Conns.Discard()
			d.polledAt, d.nextPoll = time.Time{}, now
		}
		return
	}
	d.outage.Fail(err, began, now)
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
