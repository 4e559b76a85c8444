package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// claimAll starts the claims that were chosen, and reports whether there was one.
func (d *dispatcher) claimAll(chosen []portion, now time.Time) bool {
	for _, p := range chosen {
		if p.h.Kind == handler.KindLeased {
			d.claim(p.lane, min(p.workers, leasePortion(d.config.Workers)), now)
			continue
		}
		n := min(p.workers, p.credit)
		if p.h.Kind == handler.KindBatch {
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
	random := d.config.Order == Random
	c.credit--
	c.served = now
	c.running += slots
	d.free -= slots
	d.claims++
	limit := slots
	if c.h.Kind != handler.KindLeased {
		limit = c.h.BatchSize
	}
	known := limit
	if c.h.Rate > 0 || c.h.MaxRunningTotal > 0 { // they may leave it less
		known = 0
	}
	watermark := c.watermarks.Begin(c.head, known, now)
	if c.h.Kind == handler.KindLeased {
		next := leaseNext{limit: limit, watermark: watermark, started: c.watermarks.Started}
		if random {
			next.pivots, next.lead = c.head.RandomStarts(slots)
		}
		d.lanes.leasing(c, 1)
		go d.runLeased(c, next)
		return
	}
	c.claiming++
	next := claimNext{limit: limit, watermark: watermark, started: c.watermarks.Started}
	next.idSpan = c.watermarks.IDSpan(next.watermark, 2*d.config.Workers+16) // others are at work on some of them
	if random {
		next.pivot = c.head.RandomStart()
	}
	go d.runTx(c, next)
}

func (d *dispatcher) runTx(c *lane, next claimNext) {
	claimed, ran, ordered, began := false, false, false, time.Now()
	limit, wait, err := d.rates.take(d.ctx, c.h, next.limit)
	if err == nil && limit > 0 {
		next.limit = limit
		err = d.r.runTx(d.ctx, c.h, next, func(rows []*store.Row) {
			claimed, ran, ordered = true, len(rows) > 0, slices.ContainsFunc(rows, (*store.Row).Ordered)
			d.rates.unused(c.h, limit-len(rows))
			t := taken{len(rows), limit, claimedRuns(rows, false), began, next.started}
			d.events <- func() { d.claimed(c, t, nil, began) }
		})
		if !claimed {
			d.rates.unused(c.h, limit)
		}
	}
	d.events <- func() {
		switch {
		case claimed && pgerr.Refusal(err) && !d.once: // of its runs' rows in the journal, or of what became of its tasks
			d.refused(c, err)
		case claimed && err != nil:
			d.fail(err, began)
		case claimed:
		case errors.Is(err, errNoSlot):
			d.noSlot(c, began)
		case err == nil:
			d.noToken(c, wait, began)
		default:
			d.claimed(c, taken{limit: limit}, err, began)
		}
		d.found = d.found || ran // what ran may have enqueued
		if ordered {
			// A poll promotes the next task of the key.
			d.nextDue = time.Now()
		}
		d.released(c, 1, ran)
	}
}

// cameBack notes the end of a claim.
func (d *dispatcher) cameBack(c *lane) {
	d.claims--
	if c.h.Kind != handler.KindLeased {
		c.claiming--
	}
}

// noSlot ends a claim that was not made, as other calls of the type hold all its slots.
func (d *dispatcher) noSlot(c *lane, began time.Time) {
	d.cameBack(c)
	c.credit = max(c.credit, 1)
	c.waitForSlot()
	d.well(began)
}

// noToken ends a claim that was not made, as the rate of its type is used up.
func (d *dispatcher) noToken(c *lane, wait time.Duration, began time.Time) {
	d.cameBack(c)
	c.credit = max(c.credit, 1)
	c.waitForToken(wait)
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

// refuseFor is how long a lane rests after PostgreSQL refused a claim of it, or what is recorded of
// one.
const (
	refuseFor     = time.Second
	refusalLogged = time.Minute // at most once in
)

func (d *dispatcher) refused(c *lane, err error) {
	now := time.Now()
	c.refusedUntil, c.head, c.credit = now.Add(refuseFor), nil, 0
	if now.Sub(c.refusalAt) >= refusalLogged {
		c.refusalAt = now
		d.r.log.Error("outbox: tasks of this type cannot be claimed or recorded", "task_type", c.h.Type, "error", pgerr.LogText(err))
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
		d.r.log.Info("outbox: the server has connections for all workers again", "after", now.Sub(d.short.since).Round(time.Millisecond))
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
			d.r.log.Warn("outbox: the server has no connection left for all workers; fewer work for now", "workers", d.config.Workers)
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
