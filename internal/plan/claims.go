package plan

import (
	"cmp"
	"math"
	"time"
)

// claimNext begins a claim from the next lane, and reports whether there is one.
func (d *Dispatcher) claimNext(now time.Time) bool {
	c, workers := d.lanes.next(d.free, now)
	switch {
	case c == nil:
		return false
	case c.leased():
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

func (d *Dispatcher) claimEnded(e *ClaimEnded) {
	c, f, size := d.lanes.all[e.Lane], e.Failure, 0
	if c.leased() {
		size = e.Claim.Limit
	}
	if d.lanes.claimEnds(c); c.leased() {
		d.claims--
	}
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
	// An empty claim proves nothing: the failed tasks may be locked for now.
	if f.Err == nil && (e.Ran || e.Found.Tasks > 0) {
		d.works(c, &c.failing)
	}
	if e.Ran {
		d.tasksRan(e.Keyed)
	}
	for _, at := range e.Returned {
		c.starts.Returned(at)
	}
	d.released(c, e.Slots-e.Found.Tasks, e.Ran)
}

// notClaimed ends a claim that was not made, or failed. That of a named task says nothing of its lane.
func (d *Dispatcher) notClaimed(c *lane, e *ClaimEnded) {
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
func (d *Dispatcher) leased(c *lane, e *ClaimEnded) {
	few := e.Allowed < e.Claim.Limit
	e.Claim.Limit = e.Allowed
	d.claimed(c, e.Claim, e.Found)
	if few {
		c.starts.Failed()
		c.waitForSlot(d.now.Time)
	}
}

func (d *Dispatcher) leasesEnded(e LeasesEnded) {
	d.tasksRan(e.Keyed)
	for _, ended := range e.Lanes {
		c := d.lanes.all[ended.Lane]
		d.released(c, ended.Runs, true)
		if c.results.stuck -= ended.Stuck; ended.Stuck > 0 && c.results.stuck == 0 {
			c.results.failing = Failing{logged: c.results.failing.logged}
			d.tellFailures(c)
		}
	}
}

// claimDone notes that a claim does not look for tasks any more. A claim of leased tasks is under way
// until its commit: a poll would still see them.
func (d *Dispatcher) claimDone(c *lane) {
	c.claims.looking--
	if !c.leased() {
		d.claims--
	}
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
		c.limits.slotWait = 0
		d.polls.foundWork, d.polls.unused, d.polls.empty = true, false, 0
	}
}

// tasksRan notes that tasks ran, which may have enqueued. After one with an ordering or group key a
// poll promotes the next.
func (d *Dispatcher) tasksRan(keyed bool) {
	d.polls.foundWork = true
	if keyed {
		d.polls.due = d.now.Time
	}
}

// released takes slots back. ran: from tasks, which may have had slots of their type.
func (d *Dispatcher) released(c *lane, slots int, ran bool) {
	c.running -= slots
	d.free += slots
	if ran {
		c.limits.slotAt = time.Time{}
	}
}

// Start is where a claim begins, and in which order it takes tasks. The zero Start takes the first
// tasks of the lane.
type Start struct {
	From  *Position // in the lane's order, the tasks from here on; nil: all tasks
	Pivot *Position // in random order, the tasks from here on first, none less urgent than it
	Due   *Due      // in the order of due times, the tasks from here on; nil: in the lane's order
}

// Place is where a claim looks for tasks: from a position on, or from a due time on.
type Place struct {
	From Position
	Most int    // the least urgent priority
	Due  *int64 // the due time, in microseconds since 1970; From has only the id then
}

// Places are the places of the claim, in their order.
func (s Start) Places() (out []Place) {
	if s.Due != nil {
		return []Place{{From: Position{TaskID: s.Due.TaskID}, Most: math.MaxInt16, Due: &s.Due.RunAt}}
	}
	if s.Pivot != nil {
		out = append(out, Place{From: *s.Pivot, Most: s.Pivot.Priority})
	}
	if s.From == nil {
		return append(out, Place{From: LaneStart, Most: math.MaxInt16})
	}
	return append(out, Place{From: *s.From, Most: math.MaxInt16})
}

// Due is a place in the order of due times, whether a task has it or not.
type Due struct {
	RunAt  int64 // in microseconds since 1970
	TaskID int64
}

// Compare is by due time, then by id.
func (d Due) Compare(e Due) int {
	return cmp.Or(cmp.Compare(d.RunAt, e.RunAt), cmp.Compare(d.TaskID, e.TaskID))
}

// DueStart is before all tasks: PostgreSQL's first moment.
var DueStart = Due{-210866803200000000, math.MinInt64}

// Claim is a claim of up to Limit tasks of a lane.
type Claim struct {
	Start Start
	Limit int
	Named bool // only a wake-up asked for it, which any role can send: its failure before it found tasks means nothing
	Began time.Time

	tenth     bool // it takes the tasks that have been due longest, and says nothing of the lane's order
	movedBack int  // of the lane's watermarks, when it began
}

// behindDue reports whether the claim looks for tasks by due time, and not for the oldest ones.
func (c Claim) behindDue() bool { return c.Start.Due != nil && *c.Start.Due != DueStart }

// Found is the result of a claim.
type Found struct {
	Tasks, Bytes int // of the payloads
	classes      []classFound
	lastDue      Due
}

// classFound is what a claim took of one class.
type classFound struct {
	last  Position
	tasks int
}

// Add notes a task that the claim took.
func (f *Found) Add(at Position, runAt int64, bytes int) {
	if due := (Due{runAt, at.TaskID}); f.Tasks == 0 || due.Compare(f.lastDue) > 0 {
		f.lastDue = due
	}
	f.Tasks, f.Bytes = f.Tasks+1, f.Bytes+bytes
	for i := len(f.classes) - 1; i >= 0; i-- {
		if c := &f.classes[i]; c.last.Class() == at.Class() {
			c.last, c.tasks = later(c.last, at), c.tasks+1
			return
		}
	}
	f.classes = append(f.classes, classFound{at, 1})
}

// leastUrgent is the greatest priority of the tasks.
func (f *Found) leastUrgent() int {
	p := math.MinInt16
	for _, c := range f.classes {
		p = max(p, c.last.Priority)
	}
	return p
}
