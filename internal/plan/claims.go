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
	if c.leased {
		d.lanes.leasing(c, 1)
	} else {
		c.claiming++
	}
	d.do(StartClaim{c.index, claim, slots})
}

func (d *Dispatcher) claimFound(e ClaimFound) {
	c := d.lanes.all[e.Lane]
	if c.leased {
		c.looking--
		d.found(c, e.Claim, e.Found)
		return
	}
	d.claimed(c, e.Claim, e.Found)
}

func (d *Dispatcher) txEnded(e TxEnded) {
	c := d.lanes.all[e.Lane]
	c.of.ClaimSize = e.ClaimSize
	switch {
	case !e.Found:
		d.notClaimed(c, e.Claim, e.NotMade, e.Wait, e.Failure)
	case e.Failure.Err != nil: // of its runs' rows in the journal, or of what became of its tasks
		d.laneFailed(c, 0, e.Failure, e.Claim.Began)
	case e.Ran: // an empty claim proves nothing: the failed tasks may be locked for now
		d.works(c, &c.failing)
	}
	if e.Ran {
		d.tasksRan(e.Ordered)
	}
	for _, at := range e.Returned {
		c.starts.Returned(at)
	}
	d.released(c, 1, e.Ran)
}

func (d *Dispatcher) leaseEnded(e LeaseEnded) {
	c, now := d.lanes.all[e.Lane], d.now.Time
	d.lanes.leasing(c, -1)
	if !e.Told {
		c.looking--
	}
	if e.Failure.Err == nil && e.Found.Tasks > 0 {
		d.works(c, &c.failing)
	}
	switch {
	case e.NotMade != Made, e.Failure.Err != nil, e.Claim.Named && e.Found.Tasks == 0:
		d.notClaimed(c, e.Claim, e.NotMade, e.Wait, e.Failure)
	case e.Told:
		d.claimDone(c)
		d.succeeded(e.Claim.Began)
	default:
		few := e.Allowed < e.Claim.Limit
		e.Claim.Limit = e.Allowed
		d.claimed(c, e.Claim, e.Found)
		if few {
			c.starts.Failed()
			c.waitForSlot(now)
		}
	}
	d.released(c, e.Slots-e.Found.Tasks, false)
}

// notClaimed ends a claim that took no task, for a reason or by a failure. That of a named task says
// nothing of its lane.
func (d *Dispatcher) notClaimed(c *lane, claim Claim, why NotMade, wait time.Duration, f Failure) {
	switch {
	case claim.Named && why != SetAside:
		d.claimDone(c)
	case why == Made:
		d.claimFailed(c, claim, f)
	default:
		if why == NoSlot {
			c.waitForSlot(d.now.Time)
		} else if why == NoToken {
			c.waitForToken(wait, d.now.Time)
		}
		d.notMade(c, claim)
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
	if !c.leased {
		c.claiming--
	}
}

// notMade ends a claim that was not made.
func (d *Dispatcher) notMade(c *lane, claim Claim) {
	d.claimDone(c)
	c.starts.NotMade(claim)
	c.credit = max(c.credit, 1)
	d.succeeded(claim.Began)
}

// claimFailed ends a claim that failed.
func (d *Dispatcher) claimFailed(c *lane, claim Claim, f Failure) {
	d.claimDone(c)
	c.starts.Failed()
	d.laneFailed(c, claim.Limit, f, claim.Began)
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
