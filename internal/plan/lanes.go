package plan

import (
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
	laneClaims  = 2  // of leased tasks of one type at once: one that looks for them, and one that commits
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
	c.looking++
	if c.leased {
		c.leasing++
		l.leases++
	}
}

func (l *lanes) claimEnds(c *lane) {
	if c.leased {
		c.leasing--
		l.leases--
	}
}

// gathers reports whether the lane has to wait for a claim under way; slots for leased tasks gather
// meanwhile.
func (l *lanes) gathers(c *lane, now time.Time) bool {
	if c.leased {
		return c.looking > 0 || c.leasing >= laneClaims || l.leases >= LeaseClaims
	}
	limit, _ := c.limit(1)
	return limit > 1 && c.looking >= c.batchClaims(now)
}

// holds reports whether slots do wait for a claim of the lane, so that less urgent lanes do not get
// them: for as long as a claim may take when all is well.
func (l *lanes) holds(c *lane, now time.Time) bool {
	return l.gathers(c, now) && (!c.leased || c.looking > 0 || c.leasing >= laneClaims) &&
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
func (l *lanes) share(c *lane) int { return share(l.workers, len(l.all)) - c.running }

// room is how many more slots the lane may take.
func (l *lanes) room(c *lane) int {
	room := l.share(c)
	for _, limit := range [...]int{c.of.MaxRunningPerRelay, c.of.MaxRunning} {
		if limit > 0 {
			room = min(room, limit-c.running)
		}
	}
	if c.bounded {
		room = min(room, c.bound-c.running)
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
	if !c.leased {
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
		c.bound, c.bounded = bounds[c.of.Name]
	}
}

// heldBack reports whether the app's bound keeps a lane with work from claiming.
func (l *lanes) heldBack() bool {
	return slices.ContainsFunc(l.all, func(c *lane) bool {
		return c.head != nil && c.credit > 0 && c.bounded && c.bound <= c.running
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
