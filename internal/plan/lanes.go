package plan

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lanes chooses between the types.
type lanes struct {
	all       []*lane
	workers   int
	fair      fair
	bound     func(free int, types []Load) map[string]int // the app's; see Params
	leases    int                                         // claims of leased tasks that are under way
	eligibles []*lane                                     // of the last choice
}

// While a claim of leased tasks looks for them, the slots that become free gather for the next one.
// So claims are large when many tasks end, whatever the number of workers, and a relay that has
// room begins one at once. The next claim begins while the last one commits, as it knows by then
// where that ended. A claim takes a part of the slots only, so that tasks run and end while others are
// claimed.
const (
	maxLeasing  = 2  // of leased tasks of one type at once: one that looks for them, and one that commits
	LeaseClaims = 8  // of all types together
	leaseParts  = 2  // a claim takes one part of the slots of so many,
	leaseLeast  = 50 // but as many as that
)

// leasePortion is how many leased tasks one claim takes at most.
func leasePortion(workers int) int {
	return max((workers+leaseParts-1)/leaseParts, min(workers, leaseLeast))
}

// claimBegins counts a claim, and claimEnds ends it: that of leased tasks with its commit.
func (l *lanes) claimBegins(c *lane) {
	c.claims.looking++
	if c.leased() {
		c.claims.leasing++
		l.leases++
	}
}

func (l *lanes) claimEnds(c *lane) {
	if c.leased() {
		c.claims.leasing--
		l.leases--
	}
}

// gathers reports whether the lane has to wait for a claim under way; slots for leased tasks gather
// meanwhile.
func (l *lanes) gathers(c *lane, now time.Time) bool {
	if c.leased() {
		return c.claims.looking > 0 || c.claims.leasing >= maxLeasing || l.leases >= LeaseClaims
	}
	limit, _ := c.limit(1)
	return limit > 1 && c.claims.looking >= c.batchClaims(now)
}

// holds reports whether slots do wait for a claim of the lane, so that less urgent lanes do not get
// them: for as long as a claim may take when all is well.
func (l *lanes) holds(c *lane, now time.Time) bool {
	return l.gathers(c, now) && (!c.leased() || c.claims.looking > 0 || c.claims.leasing >= maxLeasing) &&
		l.eligible(c, now) && now.Sub(c.servedAt) < pollFresh
}

// held is the urgency of the most urgent lane that slots wait for, and whether there is one.
func (l *lanes) held(now time.Time) (urgency int, any bool) {
	for _, c := range l.all {
		if l.holds(c, now) && (!any || c.urgency() < urgency) {
			urgency, any = c.urgency(), true
		}
	}
	return urgency, any
}

// share is how many more slots the lane may take as far as other types go.
func (l *lanes) share(c *lane) int { return Share(l.workers, len(l.all)) - c.running }

// room is how many more slots the lane may take.
func (l *lanes) room(c *lane) int {
	room := l.share(c)
	for _, limit := range [...]int{c.of.MaxRunningPerRelay, c.of.MaxRunning} {
		if limit > 0 {
			room = min(room, limit-c.running)
		}
	}
	if c.limits.bounded {
		room = min(room, c.limits.bound-c.running)
	}
	return room
}

// eligible reports whether a claim from the lane makes sense now.
func (l *lanes) eligible(c *lane, now time.Time) bool {
	return c.credit > 0 && c.head != nil && l.room(c) > 0 && !c.blockedUntil().After(now)
}

// next is the lane to claim from, and the number of free workers for it; nil if no claim is to be made
// now.
func (l *lanes) next(free int, now time.Time) (c *lane, workers int) {
	l.askBounds(free, now)
	l.eligibles = l.eligibles[:0]
	held, any := l.held(now)
	for _, c := range l.all {
		if l.eligible(c, now) && !l.gathers(c, now) && (!any || c.urgency() <= held) {
			l.eligibles = append(l.eligibles, c)
		}
	}
	if len(l.eligibles) == 0 {
		return nil, 0
	}
	c = l.fair.choose(l.eligibles)
	if !c.leased() {
		return c, 1
	}
	workers = min(l.room(c), free) // one claim for all
	if len(l.eligibles) > 1 {
		workers = min(workers, c.credit)
	}
	return c, workers
}

// askBounds sets the bounds that the app has for the lanes.
func (l *lanes) askBounds(free int, now time.Time) {
	if l.bound == nil {
		return
	}
	types := make([]Load, len(l.all))
	for i, c := range l.all {
		types[i] = Load{Type: c.of.Name, Running: c.running}
		if c.head != nil {
			types[i].Waiting, types[i].Priority, types[i].Age = true, c.urgency(), now.Sub(c.head.Since)
		}
	}
	bounds := l.bound(free, types)
	for _, c := range l.all {
		c.limits.bound, c.limits.bounded = bounds[c.of.Name]
	}
}

// heldBack reports whether the app's bound keeps a lane with work from claiming.
func (l *lanes) heldBack() bool {
	return slices.ContainsFunc(l.all, func(c *lane) bool {
		return c.head != nil && c.credit > 0 && c.limits.bounded && c.limits.bound <= c.running
	})
}

// capped reports whether a lane has work that it may not take for want of room.
func (l *lanes) capped() bool {
	return slices.ContainsFunc(l.all, func(c *lane) bool { return c.head != nil && c.credit > 0 && l.share(c) <= 0 })
}

// choosable reports whether there is a lane to choose.
func (l *lanes) choosable(now time.Time) bool {
	return slices.ContainsFunc(l.all, func(c *lane) bool { return l.eligible(c, now) && !l.gathers(c, now) })
}

// resting are the types whose promotion rests after a failure, with the rest of it.
func (l *lanes) resting(now time.Time) (out map[string]time.Duration) {
	for _, c := range l.all {
		if rest := c.promoting.until.Sub(now); rest > 0 {
			if out == nil {
				out = map[string]time.Duration{}
			}
			out[c.of.Name] = rest
		}
	}
	return out
}

// unblocked is when the first of the lanes that have work and wait for their type's limits may
// claim again; zero if none waits.
func (l *lanes) unblocked(now time.Time) (first time.Time) {
	for _, c := range l.all {
		at := c.blockedUntil()
		if !at.After(now) || c.credit == 0 || c.head == nil || l.room(c) <= 0 {
			continue
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// spans are those of each lane, for a poll; nil if all are to be read from their heads.
func (l *lanes) spans() (out [][]Span) {
	for i, c := range l.all {
		if s := c.starts.Spans(); s != nil {
			if out == nil {
				out = make([][]Span, len(l.all))
			}
			out[i] = s
		}
	}
	return out
}

// named is the idle lane of the task that a wake-up names by priority, id and type, and the task's class;
// nil if there is none. Any role can send a wake-up, so its id is not relied on: tasks may be before it.
func (l *lanes) named(task string) (*lane, Class) {
	words := strings.SplitN(task, " ", 3)
	if len(words) < 3 {
		return nil, Class{}
	}
	i := slices.IndexFunc(l.all, func(c *lane) bool { return c.of.Name == words[2] && c.head == nil })
	priority, err := strconv.ParseInt(words[0], 10, 16)
	if i < 0 || err != nil {
		return nil, Class{}
	}
	if id, err := strconv.ParseInt(words[1], 10, 64); err != nil || id <= 0 {
		return nil, Class{}
	}
	return l.all[i], Class{Priority: int(priority)}
}

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
	head      *Head     // as of the last poll
	polledAt  time.Time // when the last poll of the lane's head ended
	credit    int       // claims that may find tasks: one for a head, two more for each full claim
	running   int       // slots that work for it
	taskBytes int       // of its leased tasks, about; 0: not known yet
	servedAt  time.Time // of its last claim
	starts    Starts

	failing   Failing
	promoting Failing // of its scheduled tasks: to make them ready
	results   laneResults
	claims    laneClaims
	limits    laneLimits
}

// laneResults are results of leased tasks that were not recorded.
type laneResults struct {
	failing Failing
	stuck   int // so many are tried again and again
}

// laneClaims are the claims of a lane that are under way.
type laneClaims struct {
	looking int // have not told yet what they found
	leasing int // of leased tasks: they look, or commit
}

// laneLimits are what keeps a lane from its slots besides the workers.
type laneLimits struct {
	bound   int  // of running, by the app,
	bounded bool // if it has one

	slotAt   time.Time     // other relays had all slots of its type: try again then
	slotWait time.Duration // how long that wait was
	tokenAt  time.Time     // its type's rate is used up until then
}

func (c *lane) leased() bool { return c.of.Kind == leasedKind }

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
	if limit = slots; !c.leased() {
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
// gets all workers within a few claims. An empty lane costs one claim, not one for each worker. An empty
// claim by due time says nothing of the tasks before its place, so one in the lane's order may follow.
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
		if found.Tasks == 0 && claim.behindDue() {
			c.credit = 1
		}
		return
	}
	c.credit += 2
	if c.leased() { // the next is one claim as well
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
	c.limits.slotWait = min(max(2*c.limits.slotWait, slotWaitLeast), slotWaitMost)
	c.limits.slotAt = now.Add(c.limits.slotWait/2 + rand.N(c.limits.slotWait/2))
}

func (c *lane) waitForToken(wait time.Duration, now time.Time) {
	c.limits.tokenAt = now.Add(max(wait, time.Millisecond))
}

// blockedUntil is when its type's limits may let the lane claim again, and it has rested.
func (c *lane) blockedUntil() time.Time {
	until := c.limits.slotAt
	for _, at := range [...]time.Time{c.limits.tokenAt, c.failing.until} {
		if at.After(until) {
			until = at
		}
	}
	return until
}

// dispatchTurn is how often the lane that has waited longest is served before the most urgent lane: no
// priority starves another.
const dispatchTurn = 10

// fair chooses the most urgent lane, equal lanes at random, and each tenth time the lane that has waited
// longest.
type fair struct {
	choices int
	best    []*lane
}

// choose returns one of the lanes, of which there is one at least.
func (f *fair) choose(from []*lane) *lane {
	f.best = f.best[:0]
	oldest := from[0]
	for _, c := range from {
		switch {
		case len(f.best) == 0 || c.urgency() < f.best[0].urgency():
			f.best = append(f.best[:0], c)
		case c.urgency() == f.best[0].urgency():
			f.best = append(f.best, c)
		}
		if c.waitingSince().Before(oldest.waitingSince()) {
			oldest = c
		}
	}
	if f.choices++; f.choices%dispatchTurn == 0 {
		return oldest
	}
	return f.best[rand.IntN(len(f.best))]
}

func (c *lane) waitingSince() time.Time {
	if c.head.Since.After(c.servedAt) {
		return c.head.Since
	}
	return c.servedAt
}

// Share is how many workers one type may hold: all but one, while there are other types, so that
// one type cannot stop another.
func Share(workers, types int) int {
	if types > 1 && workers > 1 {
		return workers - 1
	}
	return workers
}
