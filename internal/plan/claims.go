package plan

import "time"

// claimNext begins a claim from the next lane, and reports whether there is one.
func (d *Dispatcher) claimNext(now time.Time) bool {
	c, workers := d.lanes.next(d.free, now)
	switch {
	case c == nil:
		return false
	case c.leased:
		d.claim(c, c.upTo(min(workers, leasePortion(d.params.Workers))), now)
	default:
		d.claim(c, 1, now)
	}
	return true
}

// claim begins a claim from the lane, with one slot, or for leased tasks with one for each that may
// be taken.
func (d *Dispatcher) claim(c *lane, slots int, now time.Time) {
	c.credit--
	limit, exact := c.limit(slots)
	d.start(c, c.starts.Next(c.head, limit, exact, now), slots)
}

func (d *Dispatcher) start(c *lane, claim Claim, slots int) {
	c.servedAt = claim.Began
	c.running += slots
	d.free -= slots
	d.claims++
	d.lanes.claimBegins(c)
	d.do(StartClaim{c.index, claim, slots})
}

func (d *Dispatcher) claimFound(e ClaimFound) { d.claimed(d.lanes.all[e.Lane], e.Claim, e.Found) }

func (d *Dispatcher) claimEnded(e ClaimEnded) {
	c, f, size := d.lanes.all[e.Lane], e.Failure, 0
	if c.leased {
		size = e.Claim.Limit
	}
	d.lanes.claimEnds(c)
	c.of.ClaimSize = e.ClaimSize
	switch {
	case !e.Told && (f.Err != nil || e.NotMade != Made):
		d.notClaimed(c, e)
	case f.Err != nil: // of what is recorded of the runs, or of the commit of leases
		c.starts.Failed()
		d.laneFailed(c, size, f, e.Claim.Began)
	case !e.Told:
		d.leased(c, e)
	}
	if f.Err == nil && (e.Ran || e.Found.Tasks > 0) { // an empty claim proves nothing: the failed tasks may be locked for now
		d.works(c, &c.failing)
	}
	if e.Ran {
		d.tasksRan(e.Ordered)
	}
	for _, at := range e.Returned {
		c.starts.Returned(at)
	}
	d.released(c, e.Slots-e.Found.Tasks, e.Ran)
}

// notClaimed ends a claim that was not made, or failed. That of a named task says nothing of its lane.
func (d *Dispatcher) notClaimed(c *lane, e ClaimEnded) {
	d.claimDone(c)
	switch {
	case e.Claim.Named && e.NotMade != SetAside:
		return
	case e.NotMade == Made:
		c.starts.Failed()
		d.laneFailed(c, e.Claim.Limit, e.Failure, e.Claim.Began)
		return
	case e.NotMade == NoSlot:
		c.waitForSlot(d.now.Time)
	case e.NotMade == NoToken:
		c.waitForToken(e.Wait, d.now.Time)
	}
	c.starts.NotMade(e.Claim)
	c.credit = max(c.credit, 1)
	d.succeeded(e.Claim.Began)
}

// leased ends a claim of leased tasks, of which the slots of their type may have allowed few.
func (d *Dispatcher) leased(c *lane, e ClaimEnded) {
	few := e.Allowed < e.Claim.Limit
	e.Claim.Limit = e.Allowed
	d.claimed(c, e.Claim, e.Found)
	if few {
		c.starts.Failed()
		c.waitForSlot(d.now.Time)
	}
}

func (d *Dispatcher) leasesEnded(e LeasesEnded) {
	d.tasksRan(e.Ordered)
	for _, ended := range e.Lanes {
		c := d.lanes.all[ended.Lane]
		d.released(c, ended.Runs, true)
		if c.stuck -= ended.Stuck; ended.Stuck > 0 && c.stuck == 0 {
			c.recording = Failing{logged: c.recording.logged}
			d.tellFailures(c)
		}
	}
}

// claimDone notes that a claim does not look for tasks any more.
func (d *Dispatcher) claimDone(c *lane) {
	d.claims--
	c.looking--
}

// claimed ends a claim.
func (d *Dispatcher) claimed(c *lane, claim Claim, found Found) {
	d.claimDone(c)
	d.found(c, claim, found)
	d.succeeded(claim.Began)
}

// found notes what a claim found.
func (d *Dispatcher) found(c *lane, claim Claim, found Found) {
	now := d.now.Time
	c.found(claim, found, d.params.Workers, now)
	if found.Tasks > 0 {
		c.failing.grow(now.Sub(claim.Began), d.params.StatementTimeout)
		c.taskBytes = max(1+found.Bytes/found.Tasks, c.taskBytes/2)
		c.slotWait = 0
		d.foundWork, d.unused, d.emptyPolls = true, false, 0
	}
}

// tasksRan notes that tasks ran, which may have enqueued. After one with an ordering key a poll promotes
// the next.
func (d *Dispatcher) tasksRan(ordered bool) {
	d.foundWork = true
	if ordered {
		d.nextDue = d.now.Time
	}
}

// released takes slots back. ran: from tasks, which may have had slots of their type.
func (d *Dispatcher) released(c *lane, slots int, ran bool) {
	c.running -= slots
	d.free += slots
	if ran {
		c.slotAt = time.Time{}
	}
}
