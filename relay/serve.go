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
	start := claimStart{random: d.config.Order == Random}
	if c.turns >= fairness-1 {
		c.turns = 0
		due := c.oldest.Begin(now)
		start = claimStart{due: &due}
	}
	d.claimFrom(c, c.head, slots, now, start)
}

// claimFrom starts a claim where the lane's first task is known to be.
func (d *dispatcher) claimFrom(c *lane, head *plan.Head, slots int, now time.Time, start claimStart) {
	c.served = now
	c.running += slots
	d.free -= slots
	d.claims++
	limit := slots
	if c.h.Kind != handler.KindLeased {
		limit = c.failing.upTo(d.r.ClaimSize(c.h))
		c.claimSize = limit
	}
	known := limit
	if c.h.Rate > 0 || c.h.MaxRunningTotal > 0 { // they may leave it less
		known = 0
	}
	var watermark *plan.Position
	if start.due == nil {
		watermark = c.watermarks.Begin(head, known, now)
	}
	start.started = c.watermarks.Started
	if c.h.Kind == handler.KindLeased {
		next := store.LeaseNext{Limit: limit, Watermark: watermark, Due: start.due}
		if start.random {
			next.Pivots, next.Lead = head.RandomStarts(slots)
		}
		d.lanes.leasing(c, 1)
		go d.runLeased(c, next, start)
		return
	}
	c.claiming++
	next := store.ClaimNext{Limit: limit, Watermark: watermark, Due: start.due}
	if start.random {
		next.Pivot = head.RandomStart()
	}
	go d.runTx(c, next, start)
}

// namedPause is how long after the claim of a named task the poll follows that its wake-up asks
// for.
const namedPause = 5 * time.Millisecond

// claimNamed claims the task that a wake-up has named from a lane that was idle, without a poll
// before: that would be a round trip more until its handler starts.
func (d *dispatcher) claimNamed(now time.Time) {
	var c *lane
	var first plan.Position
	select {
	case task := <-d.named:
		c, first = d.lanes.named(task)
	default:
	}
	if c == nil || d.ctx.Err() != nil || now.Before(c.failing.until) || d.outage.Active() || d.mute ||
		d.once || d.polling || d.claims > 0 || d.free <= 1 ||
		d.lanes.chooser != nil || now.Before(d.suppressedUntil) || d.alive(now) != nil {
		return
	}
	if d.lanes.room(c) > 0 && !c.blockedUntil().After(now) && !d.lanes.gathers(c) {
		d.claimFrom(c, &plan.Head{Position: first, Since: now}, 1, now, claimStart{hinted: true})
		d.nextPoll = now.Add(namedPause)
	}
}

func tookRows(rows []*store.Row, limit int, began time.Time, start claimStart) taken {
	t := taken{tasks: len(rows), limit: limit, began: began, start: start}
	if start.due != nil {
		t.due = run.LastDue(rows)
	} else {
		t.claimed = run.ClaimedRuns(rows)
	}
	return t
}

func tookLeases(runs []*run.LeasedRun, limit int, began time.Time, start claimStart) taken {
	t := taken{tasks: len(runs), limit: limit, began: began, start: start}
	for _, x := range runs {
		t.bytes += x.Bytes()
	}
	if start.due != nil {
		t.due = run.LastDueLease(runs)
	} else {
		t.claimed = run.ClaimedLeases(runs)
	}
	return t
}

// runTx claims and runs.
func (d *dispatcher) runTx(c *lane, next store.ClaimNext, start claimStart) {
	claimed, ran, ordered, aside, began := false, false, false, false, time.Now()
	var left []*store.Row
	limit, wait, err := d.rates.take(d.ctx, c.h, next.Limit)
	if err == nil && limit > 0 {
		next.Limit = limit
		left, err = d.r.RunTx(d.ctx, c.h, next, func(rows []*store.Row) {
			claimed, ran, ordered = true, len(rows) > 0, slices.ContainsFunc(rows, (*store.Row).Ordered)
			d.rates.unused(c.h, limit-len(rows))
			t := tookRows(rows, limit, began, start)
			d.events <- func() { d.claimed(c, t, nil, began) }
		})
		if !claimed {
			d.rates.unused(c.h, limit)
			aside = !start.hinted && d.setAside(c, began, err, limit, next.Places)
		}
		d.rates.unused(c.h, len(left))
	}
	d.events <- func() {
		switch {
		case claimed && err != nil: // of its runs' rows in the journal, or of what became of its tasks
			d.laneFailed(c, 0, err, began)
		case claimed:
			if ran || !start.hinted {
				d.laneWorks(c)
			}
		case aside:
			d.notMade(c, began)
		case start.hinted:
			d.cameBack(c)
		case errors.Is(err, run.ErrNoSlot):
			c.waitForSlot()
			c.putOff(start)
			d.notMade(c, began)
		case err == nil:
			c.waitForToken(wait)
			c.putOff(start)
			d.notMade(c, began)
		default:
			d.claimed(c, taken{limit: limit}, err, began)
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
func (d *dispatcher) runLeased(c *lane, next store.LeaseNext, start claimStart) {
	began, slots, reported, aside := time.Now(), next.Limit, false, false
	var runs []*run.LeasedRun
	allowed := 0
	limit, wait, err := d.rates.take(d.ctx, c.h, next.Limit)
	if err == nil && limit > 0 {
		next.Limit = limit
		runs, allowed, err = d.leases.Lease(d.ctx, c.h, next, func(found []*run.LeasedRun) {
			reported = true
			took := tookLeases(found, limit, began, start)
			d.events <- func() {
				c.finding--
				d.took(c, took)
			}
		})
		if err != nil {
			runs, aside = nil, !start.hinted && d.setAside(c, began, err, limit, next.Places)
		}
		d.rates.unused(c.h, limit-len(runs))
	}
	if err != nil {
		allowed = limit
	}
	took := tookLeases(runs, allowed, began, start)
	d.events <- func() {
		d.lanes.leasing(c, -1)
		if !reported {
			c.finding--
		}
		if err == nil && (len(runs) > 0 || !start.hinted) {
			d.laneWorks(c)
		}
		switch {
		case aside:
			d.notMade(c, began)
		case start.hinted && len(runs) == 0:
			d.cameBack(c)
		case err == nil && limit == 0:
			c.waitForToken(wait)
			c.putOff(start)
			d.notMade(c, began)
		case err == nil && allowed == 0:
			c.waitForSlot()
			c.putOff(start)
			d.notMade(c, began)
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
	d.leases.Start(runs)
}

// setAside sets aside the tasks that cannot be read, among those that a failed claim of up to limit
// tasks met, and reports whether there were any.
func (d *dispatcher) setAside(c *lane, began time.Time, err error, limit int, places func() []store.Place) bool {
	return pgerr.Refusal(err) && !errors.Is(err, run.ErrNoSlot) && c.unreadable.setAside(began, func() int { return d.r.SetAside(c.h, limit, places()) })
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
