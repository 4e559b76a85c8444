package relay

import (
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// claim starts a claim from the lane, with one slot, or for leased tasks with one for each that may be taken.
func (d *dispatcher) claim(c *lane, now time.Time) {
	slots, limit := 1, c.h.BatchSize
	next := claimNext{}
	if d.r.config.Order == Random {
		next.pivot = c.head.from()
	}
	if c.h.Kind == handlers.KindLeased {
		slots = min(d.free, d.lanes.room(c))
		if d.lanes.others(c) {
			slots = min(slots, c.credit)
		}
		if d.r.config.Order == Random {
			slots = min(slots, randomLead)
		}
		if d.outage.active() {
			slots = 1
		}
		limit = slots
	}
	next.limit = limit
	c.credit--
	c.served = now
	c.running += slots
	d.free -= slots
	d.claims++
	if c.h.Kind == handlers.KindLeased {
		go d.runLeased(c, next)
	} else {
		go d.runTx(c, next)
	}
}

func (d *dispatcher) runTx(c *lane, next claimNext) {
	claimed, ran, began := false, false, time.Now()
	err := d.r.runTx(d.ctx, c.h, next, func(rows []*row) {
		claimed, ran = true, len(rows) > 0
		d.events <- func() { d.claimed(c, rows, next.limit, nil, began) }
	})
	d.events <- func() {
		if !claimed {
			d.claimed(c, nil, next.limit, err, began)
		} else if err != nil {
			d.fail(err, began)
		}
		d.found = d.found || ran // what ran may have enqueued
		d.released(c)
	}
}

func (d *dispatcher) runLeased(c *lane, next claimNext) {
	began := time.Now()
	rows, token, err := d.r.lease(d.ctx, c.h, next)
	if err != nil {
		rows = nil
	}
	d.events <- func() {
		d.claimed(c, rows, next.limit, err, began)
		for range next.limit - len(rows) {
			d.released(c)
		}
	}
	for _, t := range rows {
		go func() {
			d.r.runLeased(c.h, t, token)
			d.events <- func() {
				d.found = true // what ran may have enqueued
				d.released(c)
			}
		}()
	}
}

// claimed is what a claim of up to limit tasks found.
func (d *dispatcher) claimed(c *lane, rows []*row, limit int, err error, began time.Time) {
	d.claims--
	if err != nil {
		if !d.once && refusal(err) {
			d.refused(c, err)
			return
		}
		d.fail(err, began)
		return
	}
	d.lanes.took(c, rows, limit)
	if len(rows) > 0 {
		d.found, d.fruitful, d.dry = true, false, 0
	}
	d.well(began)
}

// refuseFor is how long a lane rests whose claim PostgreSQL refused.
const refuseFor = time.Second

// refusal reports whether a claim failed for a reason that may lie in the lane's rows, or in a trigger or right of the
// app's: other lanes go on.
func refusal(err error) bool {
	code := pgerr.Code(err)
	return code != "" && !pgerr.Lost(err) && !pgerr.Passing(err) && code[:2] != "53" && code[:2] != "58" && code[:2] != "XX"
}

func (d *dispatcher) refused(c *lane, err error) {
	now := time.Now()
	c.refusedUntil, c.head, c.credit = now.Add(refuseFor), nil, 0
	if now.Sub(c.refusalAt) >= unhandledInterval {
		c.refusalAt = now
		d.r.log.Error("outbox: tasks of this type cannot be claimed", "task_type", c.h.Type, "error", safeText(err))
	}
}

func (d *dispatcher) released(c *lane) {
	c.running--
	d.free++
}

// well notes that something came through that began at the given time.
func (d *dispatcher) well(began time.Time) {
	if began.After(d.broke) {
		d.broken = 0
	}
	d.outage.ok(began, time.Now())
}

// fail slows the relay down. What may be the end of one connection only makes it look again, for which it takes
// another. Where the server only has no more connections, it gives up a slot for a while, but not the last one.
func (d *dispatcher) fail(err error, began time.Time) {
	now := time.Now()
	if d.ctx.Err() != nil {
		return // it is the end of ctx that failed it
	}
	if d.once {
		d.failed = err
		return
	}
	if pgerr.Code(err) == "53300" && d.parked < d.r.config.Workers-1 && !d.outage.active() {
		if d.parked == 0 {
			d.r.log.Warn("outbox: the server has no connection left for all workers; fewer work for now", "workers", d.r.config.Workers)
			time.AfterFunc(parkFor, d.unpark)
		}
		d.parked, d.free = d.parked+1, d.free-1
		return
	}
	if pgerr.Passing(err) && !d.outage.active() && d.broken < passing {
		if began.After(d.broke) { // else it is one of several that failed together
			d.broken, d.broke = d.broken+1, now
			d.r.conns.discard()
			d.lookedAt, d.nextLook = time.Time{}, now
		}
		return
	}
	d.outage.fail(err, began, now)
}

// unpark lets one of the slots that were given up try again.
func (d *dispatcher) unpark() {
	d.events <- func() {
		d.parked, d.free = d.parked-1, d.free+1
		if d.parked > 0 {
			time.AfterFunc(parkFor, d.unpark)
		}
	}
}
