package plan

import (
	"math/rand/v2"
	"time"
)

// pollFresh is how old a poll may be when a lane is chosen.
const pollFresh = 50 * time.Millisecond

// leasedKind is the Kind of leased tasks.
const leasedKind = "leased"

// Load is the state of a lane for the app's bounds.
type Load struct {
	Type     string
	Running  int
	Waiting  bool
	Priority int           // if Waiting, of the most urgent task, with that of the type
	Age      time.Duration // if Waiting, since when the first task has been due
}

// Type is a task type with a handler, as the dispatcher knows it.
type Type struct {
	Name, Kind                     string // Kind is "tx", "batch" or "leased"
	Priority                       int    // added to that of each task
	MaxRunningPerRelay, MaxRunning int    // workers of this relay; of all relays; 0: no limit
	Rated                          bool   // it has a rate
	ClaimSize                      int    // tasks of a claim, unless they are leased
}

// lane is the dispatcher's state of one task type.
type lane struct {
	index     int
	of        Type
	leased    bool
	head      *Head     // as of the last poll
	polledAt  time.Time // when the last poll of the lane's head ended
	credit    int       // claims that may find tasks: one for a head, two more for each full claim
	running   int       // slots that work for it
	bound     int       // of running, by the app,
	bounded   bool      // if it has one
	looking   int       // claims that have not told yet what they found
	leasing   int       // claims of leased tasks that are under way: they look, or commit
	taskBytes int       // of its leased tasks, about; 0: not known yet
	servedAt  time.Time // of its last claim
	starts    Starts

	failing   Failing
	promoting Failing // of its scheduled tasks: to make them ready
	recording Failing // of results of leased tasks
	stuck     int     // so many of these are tried again and again

	slotAt   time.Time     // other relays had all slots of its type: try again then
	slotWait time.Duration // how long that wait was
	tokenAt  time.Time     // its type's rate is used up until then
}

// Claims of batches of one lane that run at once. Concurrent claims start at the same row and skip
// each other's locks, so more than two cost time. In a backlog each claim has a start of its own.
const (
	batchClaims   = 2
	backlogClaims = 4
)

func (c *lane) batchClaims(now time.Time) int {
	if c.head != nil && c.starts.Separate(c.head, now) {
		return backlogClaims
	}
	return batchClaims
}

// A claim of leased tasks has about so many bytes of payloads: all are there before the first run
// begins, and a cancelled claim is read to its end.
const (
	claimBytes = 8 << 20
	firstClaim = 64 // tasks, while a lane's sizes are not known
)

// limit is how many tasks a claim with so many slots may take. exact is false if the rate or the slots
// of the type may leave it less.
func (c *lane) limit(slots int) (limit int, exact bool) {
	if limit = slots; !c.leased {
		limit = c.failing.upTo(c.of.ClaimSize)
	}
	return limit, !c.of.Rated && c.of.MaxRunning == 0
}

// upTo is the number of leased tasks that a claim may take, limit at most.
func (c *lane) upTo(limit int) int {
	if c.taskBytes == 0 {
		return c.failing.upTo(min(limit, firstClaim))
	}
	return c.failing.upTo(min(limit, max(claimBytes/c.taskBytes, 1)))
}

func (c *lane) urgency() int { return c.starts.urgent + c.of.Priority }

// polled updates the lane from a poll.
func (c *lane) polled(h *Head, now time.Time) {
	c.starts.Polled(h)
	c.head, c.polledAt = h, now
	if h == nil {
		c.credit = 0
	} else {
		c.credit = max(c.credit, 1)
	}
}

// found updates the lane from a claim. A full claim earns credit for two more, so a lane with a backlog
// gets all workers within a few claims. An empty lane costs one claim, not one for each worker.
func (c *lane) found(claim Claim, found Found, workers int, now time.Time) {
	if claim.Named {
		if found.Tasks == 0 {
			return
		}
		if c.head == nil { // it was true: more may follow
			c.head = &Head{Position: found.classes[0].last, Since: claim.Began}
		}
	}
	c.starts.Took(claim, found, now)
	if found.Tasks < claim.Limit {
		if c.polledAt.Before(claim.Began) {
			c.credit = 0
		} else { // the poll may have found a task that became ready after the claim
			c.credit = min(c.credit, 1)
		}
		return
	}
	c.credit += 2
	if c.leased { // the next is one claim as well
		c.credit = max(c.credit, 2*claim.Limit)
	}
	c.credit = min(c.credit, workers)
}

// Bounds of the wait before a relay tries again to get a slot of other relays. It takes its own free
// slots at once.
const (
	slotWaitLeast = 10 * time.Millisecond
	slotWaitMost  = 400 * time.Millisecond
)

func (c *lane) waitForSlot(now time.Time) {
	c.slotWait = min(max(2*c.slotWait, slotWaitLeast), slotWaitMost)
	c.slotAt = now.Add(c.slotWait/2 + rand.N(c.slotWait/2))
}

func (c *lane) waitForToken(wait time.Duration, now time.Time) {
	c.tokenAt = now.Add(max(wait, time.Millisecond))
}

// blockedUntil is when its type's limits may let the lane claim again, and it has rested.
func (c *lane) blockedUntil() time.Time {
	until := c.slotAt
	for _, at := range [...]time.Time{c.tokenAt, c.failing.until} {
		if at.After(until) {
			until = at
		}
	}
	return until
}
