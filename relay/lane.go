package relay

import (
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// pollFresh is how old a poll may be when a lane is chosen.
const pollFresh = 50 * time.Millisecond

// lane is the dispatcher's state of one task type.
type lane struct {
	h         *handler.Handler
	head      *plan.Head // as of the last poll
	polledAt  time.Time  // when the last poll of the lane's head ended
	urgent    int        // the least priority that its next task may have
	credit    int        // claims that may find work: one for a head, two more for each full claim
	running   int        // slots that work for it
	leasing   int        // claims of leased tasks that have not come back
	finding   int        // those of them that have not said what they found
	claiming  int        // other claims that have not
	claimSize int        // tasks that the last of these asked for
	taskBytes int        // of its leased tasks, about; 0: not known yet
	served    time.Time  // of its last claim
	starts    plan.Starts

	failing    failing
	promoting  failing // of what is due: to make it ready
	recording  failing // of results of leased tasks
	stuck      int     // so many of these are tried again and again
	unreadable unreadable

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

func (c *lane) batchClaims() int {
	if c.head != nil && c.starts.Separate(c.head, time.Now()) {
		return backlogClaims
	}
	return batchClaims
}

// upTo is the number of leased tasks that a claim may take, limit at most.
func (c *lane) upTo(limit int) int {
	if c.taskBytes == 0 {
		return min(limit, firstClaim)
	}
	return min(limit, max(claimBytes/c.taskBytes, 1))
}

func (c *lane) urgency() int { return c.urgent + c.h.Priority }

// polled updates the lane from a poll.
func (c *lane) polled(h *plan.Head) {
	c.starts.Polled(h)
	c.head, c.polledAt = h, time.Now()
	if h == nil {
		c.credit = 0
	} else {
		c.credit, c.urgent = max(c.credit, 1), h.Priority
	}
}

// returned has claims begin at the tasks again that a group has locked and left as they were.
func (c *lane) returned(tasks []*store.Row) {
	for _, t := range tasks {
		c.starts.Returned(plan.Position{Priority: t.Priority, Attempt: t.Attempt, TaskID: t.ID})
	}
}

// Bounds of the wait before a relay tries again to get a slot of other relays. It takes its own free
// slots at once.
const (
	slotWaitLeast = 10 * time.Millisecond
	slotWaitMost  = 400 * time.Millisecond
)

func (c *lane) waitForSlot() {
	c.slotWait = min(max(2*c.slotWait, slotWaitLeast), slotWaitMost)
	c.slotAt = time.Now().Add(c.slotWait/2 + rand.N(c.slotWait/2))
}

func (c *lane) waitForToken(wait time.Duration) {
	c.tokenAt = time.Now().Add(min(max(wait, time.Millisecond), tokenWait))
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
