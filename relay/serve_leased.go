package relay

import (
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/run"
)

// runLeased claims leased tasks and starts their handlers. The next claim of the lane need not wait for the commit of this one.
func (d *dispatcher) runLeased(c *lane, next run.LeaseNext) {
	began, slots, reported := time.Now(), next.Limit, false
	var runs []*run.LeasedRun
	var token string
	allowed := 0
	limit, wait, err := d.rates.take(d.ctx, c.h, next.Limit)
	if err == nil && limit > 0 {
		next.Limit = limit
		runs, token, allowed, err = d.leases.Lease(d.ctx, c.h, next, func(found []*run.LeasedRun) {
			reported = true
			took := takenBy(found, limit, began, next)
			d.events <- func() {
				c.finding--
				d.took(c, took)
			}
		})
		if err != nil {
			runs = nil
		}
		d.rates.unused(c.h, limit-len(runs))
	}
	took := takenBy(runs, allowed, began, next)
	d.events <- func() {
		d.lanes.leasing(c, -1)
		if !reported {
			c.finding--
		}
		switch {
		case err == nil && limit == 0:
			d.noToken(c, wait, began)
		case err == nil && allowed == 0:
			d.noSlot(c, began)
		case err == nil && reported:
			d.cameBack(c)
			d.well(began)
		default:
			d.claimed(c, took, err, began)
			if err == nil && allowed < limit {
				c.watermarks.NoteShort()
				c.waitForSlot()
			}
		}
		d.released(c, slots-len(runs), false)
	}
	if len(runs) == 0 {
		return // the dispatcher may have ended by now, and its relay may run again
	}
	d.leases.Start(c.h, token, runs)
}

// takenBy is what a claim of up to limit tasks has found.
func takenBy(runs []*run.LeasedRun, limit int, began time.Time, next run.LeaseNext) taken {
	return taken{len(runs), limit, run.ClaimedLeases(runs), began, next.Started}
}

// ended hears of runs of leased tasks whose results are committed.
func (d *dispatcher) ended(runs []run.Settled) {
	type end struct {
		h    *handlers.Handler
		runs int
	}
	var ends []end
	ordered := false
	for _, x := range runs {
		i := 0
		for i < len(ends) && ends[i].h != x.Handler() {
			i++
		}
		if i == len(ends) {
			ends = append(ends, end{h: x.Handler()})
		}
		ends[i].runs++
		ordered = ordered || x.Ordered()
	}
	d.events <- func() {
		d.found = true // what ran may have enqueued
		if ordered {
			// A poll promotes the next task of the key.
			d.nextDue = time.Now()
		}
		for _, e := range ends {
			d.released(d.lanes.of(e.h), e.runs, true)
		}
	}
}
