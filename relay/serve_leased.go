package relay

import (
	"time"

	"github.com/txoutbox/outbox/internal/handler"
)

// runLeased claims leased tasks and starts their handlers. The next claim of the lane need not wait for the commit of this one.
func (d *dispatcher) runLeased(c *lane, next leaseNext) {
	began, slots, reported := time.Now(), next.limit, false
	var runs []*leasedRun
	var token string
	allowed := 0
	limit, wait, err := d.rates.take(d.ctx, c.h, next.limit)
	if err == nil && limit > 0 {
		next.limit = limit
		runs, token, allowed, err = d.leases.lease(d.ctx, c.h, next, func(found []*leasedRun) {
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
	for _, x := range runs {
		x.claimed(d.leases, c.h, token)
	}
	d.leases.starts.add(starters(runs))
}

// takenBy is what a claim of up to limit tasks has found.
func takenBy(runs []*leasedRun, limit int, began time.Time, next leaseNext) taken {
	return taken{len(runs), limit, claimedRuns(rowsIn(runs), true), began, next.started}
}

// ended hears of runs of leased tasks whose results are committed.
func (d *dispatcher) ended(runs []settled) {
	type end struct {
		h    *handler.Handler
		runs int
	}
	var ends []end
	ordered := false
	for _, x := range runs {
		i := 0
		for i < len(ends) && ends[i].h != x.handler() {
			i++
		}
		if i == len(ends) {
			ends = append(ends, end{h: x.handler()})
		}
		ends[i].runs++
		ordered = ordered || x.ordered()
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
