package relay

import "time"

// runLeased claims leased tasks and starts their handlers.
func (d *dispatcher) runLeased(c *lane, next leaseNext) {
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
	took := taken{len(rows), allowed, bites(rows, true), next.started}
	d.events <- func() {
		d.lanes.leasing(c, -1)
		switch {
		case err == nil && limit == 0:
			d.noToken(c, wait, began)
		case err == nil && allowed == 0:
			d.noSlot(c, began)
		default:
			d.claimed(c, took, err, began)
			if err == nil && allowed < limit {
				c.waitForSlot()
			}
		}
		d.released(c, slots-len(rows), false)
	}
	for _, t := range rows {
		go d.r.runLeased(c, t, token)
	}
}

// ended hears of runs of leased tasks whose results are committed.
func (d *dispatcher) ended(runs []*leasedRun) {
	type end struct {
		c    *lane
		runs int
	}
	var ends []end
	ordered := false
	for _, x := range runs {
		i := 0
		for i < len(ends) && ends[i].c != x.lane {
			i++
		}
		if i == len(ends) {
			ends = append(ends, end{c: x.lane})
		}
		ends[i].runs++
		ordered = ordered || x.row.ordered()
	}
	d.events <- func() {
		d.found = true // what ran may have enqueued
		if ordered {
			d.nextDue = time.Now()
		}
		for _, e := range ends {
			d.released(e.c, e.runs, true)
		}
	}
}
