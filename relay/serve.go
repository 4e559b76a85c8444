package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/internal/store"
)

// claimAll starts the claims that were chosen, and reports whether there was one.
func (d *dispatcher) claimAll(chosen []portion, now time.Time) bool {
	for _, p := range chosen {
		if p.h.Kind == handler.KindLeased {
			d.claim(p.lane, p.failing.upTo(p.upTo(min(p.workers, leasePortion(d.config.Workers)))), now)
			continue
		}
		n := min(p.workers, p.credit)
		if p.claimSize > 1 {
			n = min(n, p.batchClaims()-p.claiming)
		}
		for range n {
			d.claim(p.lane, 1, now)
		}
	}
	return len(chosen) > 0
}

// claim starts a claim from the lane, with one slot, or for leased tasks with one for each that may
// be taken.
func (d *dispatcher) claim(c *lane, slots int, now time.Time) {
	c.credit--
	limit, exact := d.limit(c, slots)
	d.start(c, c.starts.Next(c.head, limit, exact, now), slots)
}

// limit is how many tasks a claim with so many slots may take. exact is false if the rate or the slots
// of the type may leave it less.
func (d *dispatcher) limit(c *lane, slots int) (limit int, exact bool) {
	if limit = slots; c.h.Kind != handler.KindLeased {
		limit = c.failing.upTo(d.r.ClaimSize(c.h))
		c.claimSize = limit
	}
	return limit, c.h.Rate == 0 && c.h.MaxRunningTotal == 0
}

// start starts a claim.
func (d *dispatcher) start(c *lane, claim plan.Claim, slots int) {
	c.served = claim.Began
	c.running += slots
	d.free -= slots
	d.claims++
	if c.h.Kind == handler.KindLeased {
		d.lanes.leasing(c, 1)
		go d.runLeased(c, claim)
		return
	}
	c.claiming++
	go d.runTx(c, claim)
}

// namedPause is how long after the claim of a named task the poll follows that its wake-up asks
// for.
const namedPause = 5 * time.Millisecond

// claimNamed claims the task that a wake-up has named from a lane that was idle, without a poll
// before: that would be a round trip more until its handler starts.
func (d *dispatcher) claimNamed(now time.Time) {
	var c *lane
	var class plan.Class
	select {
	case task := <-d.named:
		c, class = d.lanes.named(task)
	default:
	}
	if c == nil || d.ctx.Err() != nil || now.Before(c.failing.until) || d.outage.Active() || d.mute ||
		d.once || d.polling || d.claims > 0 || d.free <= 1 ||
		d.lanes.chooser != nil || now.Before(d.suppressedUntil) || d.alive(now) != nil {
		return
	}
	if d.lanes.room(c) > 0 && !c.blockedUntil().After(now) && !d.lanes.gathers(c) {
		limit, exact := d.limit(c, 1)
		d.start(c, c.starts.Named(class, limit, exact, now), 1)
		d.nextPoll = now.Add(namedPause)
	}
}

// runTx claims and runs.
func (d *dispatcher) runTx(c *lane, claim plan.Claim) {
	claimed, ran, ordered, aside := false, false, false, false
	var left []*store.Row
	limit, wait, err := d.rates.take(d.ctx, c.h, claim.Limit)
	claim.Limit = limit
	if err == nil && limit > 0 {
		left, err = d.r.RunTx(d.ctx, c.h, claim, func(rows []*store.Row) {
			claimed, ran, ordered = true, len(rows) > 0, slices.ContainsFunc(rows, (*store.Row).Ordered)
			d.rates.unused(c.h, limit-len(rows))
			found := run.Found(rows)
			d.events <- func() { d.claimed(c, claim, found) }
		})
		if !claimed {
			d.rates.unused(c.h, limit)
			aside = d.setAside(c, claim, err)
		}
		d.rates.unused(c.h, len(left))
	}
	d.events <- func() {
		switch {
		case claimed && err != nil: // of its runs' rows in the journal, or of what became of its tasks
			d.laneFailed(c, 0, err, claim.Began)
		case claimed:
			if ran || !claim.Named {
				d.laneWorks(c)
			}
		case aside:
			d.notMade(c, claim)
		case claim.Named:
			d.cameBack(c)
		case errors.Is(err, run.ErrNoSlot):
			c.waitForSlot()
			d.notMade(c, claim)
		case err == nil:
			c.waitForToken(wait)
			d.notMade(c, claim)
		default:
			d.claimFailed(c, claim, err)
		}
		if ran {
			d.ran(ordered)
		}
		c.returned(left)
		d.released(c, 1, ran)
	}
}

// runLeased claims leased tasks and starts their handlers. The next claim of the lane need not wait
// for the commit of this one.
func (d *dispatcher) runLeased(c *lane, claim plan.Claim) {
	slots, reported, aside := claim.Limit, false, false
	var runs []*run.LeasedRun
	allowed := 0
	limit, wait, err := d.rates.take(d.ctx, c.h, claim.Limit)
	claim.Limit = limit
	if err == nil && limit > 0 {
		runs, allowed, err = d.leases.Lease(d.ctx, c.h, claim, func(found []*run.LeasedRun) {
			reported = true
			took := run.FoundLeases(found)
			d.events <- func() {
				c.finding--
				d.took(c, claim, took)
			}
		})
		if err != nil {
			runs, aside = nil, d.setAside(c, claim, err)
		}
		d.rates.unused(c.h, limit-len(runs))
	}
	found := run.FoundLeases(runs)
	d.events <- func() {
		d.lanes.leasing(c, -1)
		if !reported {
			c.finding--
		}
		if err == nil && (len(runs) > 0 || !claim.Named) {
			d.laneWorks(c)
		}
		switch {
		case aside:
			d.notMade(c, claim)
		case claim.Named && len(runs) == 0:
			d.cameBack(c)
		case err != nil:
			d.claimFailed(c, claim, err)
		case limit == 0:
			c.waitForToken(wait)
			d.notMade(c, claim)
		case allowed == 0:
			c.waitForSlot()
			d.notMade(c, claim)
		case reported:
			d.cameBack(c)
			d.well(claim.Began)
		default:
			claim.Limit = allowed
			d.claimed(c, claim, found)
			if allowed < limit {
				c.starts.Failed()
				c.waitForSlot()
			}
		}
		d.released(c, slots-len(runs), false)
	}
	if len(runs) == 0 {
		return // the dispatcher may have ended by now, and its relay may run again
	}
	d.leases.Start(runs)
}

// setAside sets aside the tasks that cannot be read, among those that a failed claim met, and reports
// whether there were any.
func (d *dispatcher) setAside(c *lane, claim plan.Claim, err error) bool {
	return !claim.Named && pgerr.Refusal(err) && !errors.Is(err, run.ErrNoSlot) &&
		c.unreadable.setAside(claim.Began, func() int { return d.r.SetAside(c.h, claim.Limit, claim.Start) })
}

// ended hears of runs of leased tasks whose results are committed.
func (d *dispatcher) ended(runs []*run.LeasedRun) {
	ends, stuck := map[*handler.Handler]int{}, map[*handler.Handler]int{}
	for _, x := range runs {
		if ends[x.Handler()]++; x.Stuck {
			stuck[x.Handler()]++
		}
	}
	ordered := slices.ContainsFunc(runs, (*run.LeasedRun).Ordered)
	d.events <- func() {
		d.ran(ordered)
		for h, n := range ends {
			d.released(d.lanes.of(h), n, true)
			d.unstuck(d.lanes.of(h), stuck[h])
		}
	}
}
