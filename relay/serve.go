package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// claimAll starts the claims that were chosen, and reports whether there was one.
func (d *dispatcher) claimAll(chosen []portion, now time.Time) bool {
	for _, p := range chosen {
		if p.h.Kind == handlers.KindLeased {
			d.claim(p.lane, p.workers, now)
			continue
		}
		for range min(p.workers, p.credit) {
			d.claim(p.lane, 1, now)
		}
	}
	return len(chosen) > 0
}

// claim starts a claim from the lane, with one slot, or for leased tasks with one for each that may be taken.
func (d *dispatcher) claim(c *lane, slots int, now time.Time) {
	limit := c.h.BatchSize
	next := claimNext{}
	if d.r.config.Order == Random {
		next.pivot = c.head.from()
	}
	if c.h.Kind == handlers.KindLeased {
		if d.r.config.Order == Random {
			slots = min(slots, randomLead)
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
	claimed, ran, ordered, began := false, false, false, time.Now()
	limit, wait, err := d.r.rates.take(d.ctx, c.h, next.limit)
	if err == nil && limit > 0 {
		next.limit = limit
		err = d.r.runTx(d.ctx, c.h, next, func(rows []*row) {
			claimed, ran, ordered = true, len(rows) > 0, slices.ContainsFunc(rows, (*row).ordered)
			d.r.rates.unused(c.h, limit-len(rows))
			d.events <- func() { d.claimed(c, rows, limit, nil, began) }
		})
		if !claimed {
			d.r.rates.unused(c.h, limit)
		}
	}
	d.events <- func() {
		switch {
		case claimed && err != nil:
			d.fail(err, began)
		case claimed:
		case errors.Is(err, errNoSlot):
			d.noSlot(c, began)
		case err == nil:
			d.noToken(c, wait, began)
		default:
			d.claimed(c, nil, limit, err, began)
		}
		d.found = d.found || ran // what ran may have enqueued
		if ordered {
			d.nextDue = time.Now()
		}
		d.released(c, ran)
	}
}

func (d *dispatcher) runLeased(c *lane, next claimNext) {
	began, slots := time.Now(), next.limit
	var rows []*row
	var token string
	allowed := 0
	limit, wait, err := d.r.rates.take(d.ctx, c.h, next.limit)
	if err == nil && limit > 0 {
		next.limit = limit
		if rows, token, allowed, err = d.r.lease(d.ctx, c.h, next); err != nil {
			rows = nil
		}
		d.r.rates.unused(c.h, limit-len(rows))
	}
	d.events <- func() {
		switch {
		case err == nil && limit == 0:
			d.noToken(c, wait, began)
		case err == nil && allowed == 0:
			d.noSlot(c, began)
		default:
			d.claimed(c, rows, allowed, err, began)
			if err == nil && allowed < limit {
				c.waitForSlot()
			}
		}
		for range slots - len(rows) {
			d.released(c, false)
		}
	}
	for _, t := range rows {
		go func() {
			d.r.runLeased(c.h, t, token)
			d.events <- func() {
				d.found = true // what ran may have enqueued
				if t.ordered() {
					d.nextDue = time.Now()
				}
				d.released(c, true)
			}
		}()
	}
}

// noSlot ends a claim that was not made, as other calls of the type hold all its slots.
func (d *dispatcher) noSlot(c *lane, began time.Time) {
	d.claims--
	c.credit = max(c.credit, 1)
	c.waitForSlot()
	d.well(began)
}

// noToken ends a claim that was not made, as the rate of its type is used up.
func (d *dispatcher) noToken(c *lane, wait time.Duration, began time.Time) {
	d.claims--
	c.credit = max(c.credit, 1)
	c.waitForToken(wait)
	d.well(began)
}

// claimed is what a claim of up to limit tasks found.
func (d *dispatcher) claimed(c *lane, rows []*row, limit int, err error, began time.Time) {
	d.claims--
	d.lanes.declined = false
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
		c.slotWait = 0
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

// released takes a worker back. ran: from a task, which may have had a slot of its type.
func (d *dispatcher) released(c *lane, ran bool) {
	c.running--
	d.free++
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
