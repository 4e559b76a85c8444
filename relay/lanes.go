package relay

import (
	"slices"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/plan"
)

// lanes chooses between the types. It is not for concurrent use.
type lanes struct {
	all      []*lane
	workers  int
	fair     fairOrder
	chooser  *appChooser // the app's; nil for the built-in order
	leases   int         // claims of leased tasks that have not come back
	declined bool        // the app's Chooser has chosen nothing, and nothing has changed since

	heads []Head  // of the last view
	seen  []*lane // that these are of
}

// of is the lane of a type.
func (l *lanes) of(h *handler.Handler) *lane {
	return l.all[slices.IndexFunc(l.all, func(c *lane) bool { return c.h == h })]
}

// While a claim of leased tasks looks for them, the slots that become free gather for the next one.
// So claims are large when many tasks end, whatever the number of workers, and a relay that has
// room begins one at once. The next one begins while the last one commits, as it knows by then
// where that ended. One takes a part of the slots only, so that tasks run and end while others are
// claimed.
const (
	laneClaims  = 2  // of leased tasks of one type at once: one that looks for them, and one that commits
	leaseClaims = 8  // of all types together
	leaseParts  = 2  // a claim takes one part of the slots of so many,
	leaseLeast  = 50 // but as many as that
)

// A claim of leased tasks has so many bytes of payloads or so: all are there before the first one
// begins, and a cancelled claim is read to its end.
const (
	claimBytes = 8 << 20
	firstClaim = 64 // tasks, while a lane's sizes are not known
)

// leasePortion is how many leased tasks one claim takes at most.
func leasePortion(workers int) int {
	return max((workers+leaseParts-1)/leaseParts, min(workers, leaseLeast))
}

// leasing counts claims of leased tasks: 1 for one that begins, -1 for one that has come back.
func (l *lanes) leasing(c *lane, n int) {
	c.leasing += n
	c.finding += max(n, 0)
	l.leases += n
}

// gathers reports whether the lane has to wait for a claim under way; slots for leased tasks gather
// meanwhile.
func (l *lanes) gathers(c *lane) bool {
	switch {
	case c.claimSize > 1:
		return c.claiming >= c.batchClaims()
	case c.h.Kind == handler.KindLeased:
		return c.finding > 0 || c.leasing >= laneClaims || l.leases >= leaseClaims
	}
	return false
}

// holds reports whether slots do wait for a claim of the lane, so that less urgent lanes do not get
// them: for as long as a claim may take when all is well.
func (l *lanes) holds(c *lane) bool {
	return (c.finding > 0 || c.leasing >= laneClaims || c.claiming >= c.batchClaims()) && l.gathers(c) && l.eligible(c) && time.Since(c.served) < pollFresh
}

// held is the urgency of the most urgent lane that slots wait for, and whether there is one.
func (l *lanes) held() (urgency int, any bool) {
	for _, c := range l.all {
		if l.holds(c) && (!any || c.urgency() < urgency) {
			urgency, any = c.urgency(), true
		}
	}
	return urgency, any
}

// share is how many more slots the lane may take as far as other types go.
func (l *lanes) share(c *lane) int {
	if l.chooser != nil {
		return l.workers - c.running // it is the Chooser's business
	}
	return share(l.workers, len(l.all)) - c.running
}

// room is how many more slots the lane may take.
func (l *lanes) room(c *lane) int {
	room := l.share(c)
	for _, limit := range [...]int{c.h.MaxRunning, c.h.MaxRunningTotal} {
		if limit > 0 {
			room = min(room, limit-c.running)
		}
	}
	return room
}

// eligible reports whether a claim from the lane makes sense now.
func (l *lanes) eligible(c *lane) bool {
	return c.credit > 0 && c.head != nil && l.room(c) > 0 && !c.blockedUntil().After(time.Now())
}

func (l *lanes) view(free int) View {
	l.heads, l.seen = l.heads[:0], l.seen[:0]
	held, any := l.held()
	for _, c := range l.all {
		switch {
		case !l.eligible(c):
			continue
		case l.chooser != nil && l.holds(c): // the Chooser says who may have its slots
		case l.gathers(c), l.chooser == nil && any && c.urgency() > held:
			continue
		}
		l.heads = append(l.heads, Head{Type: c.h.Type, Kind: string(c.h.Kind), Priority: c.urgency(), RunAt: c.head.Since, Served: c.served,
			Running: c.running, Room: min(l.room(c), free), Likely: c.credit})
		l.seen = append(l.seen, c)
	}
	return View{Heads: l.heads, Free: free, Workers: l.workers, Types: len(l.all)}
}

// choose is the lane to claim from next in the built-in order, or nil.
func (l *lanes) choose() *lane {
	for i, n := range l.fair.Choose(l.view(l.workers)) {
		if n > 0 {
			return l.seen[i]
		}
	}
	return nil
}

// portion is what is to be claimed from a lane.
type portion struct {
	*lane
	workers int
}

// portions are what to claim with the free workers; none if nothing is to be claimed now.
func (l *lanes) portions(free int) (out []portion) {
	v := l.view(free)
	if len(v.Heads) == 0 {
		return nil
	}
	var answer []int
	if l.chooser == nil {
		answer = l.fair.Choose(v)
	} else {
		answer = l.chooser.choose(v, &l.fair)
	}
	for i, n := range answer {
		if n > 0 && !l.gathers(l.seen[i]) {
			out = append(out, portion{l.seen[i], n})
		}
	}
	l.declined = l.chooser != nil && len(out) == 0
	return out
}

// capped reports whether a lane has work that it may not take for want of room.
func (l *lanes) capped() bool {
	for _, c := range l.all {
		if c.head != nil && c.credit > 0 && l.share(c) <= 0 {
			return true
		}
	}
	return false
}

// choosable reports whether there is a lane to choose.
func (l *lanes) choosable() bool {
	return !l.declined && slices.ContainsFunc(l.all, func(c *lane) bool { return l.eligible(c) && !l.gathers(c) })
}

// resting are the types whose promotion rests after a failure, with the rest of it.
func (l *lanes) resting(now time.Time) (out map[string]time.Duration) {
	for _, c := range l.all {
		if rest := c.promoting.until.Sub(now); rest > 0 {
			if out == nil {
				out = map[string]time.Duration{}
			}
			out[c.h.Type] = rest
		}
	}
	return out
}

// unblocked is when the first of the lanes that have work and wait for their type's limits may
// claim again; zero if none waits.
func (l *lanes) unblocked(now time.Time) (first time.Time) {
	for _, c := range l.all {
		if at := c.blockedUntil(); at.After(now) && c.credit > 0 && c.head != nil && l.room(c) > 0 && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}

// spans are those of each lane, for a poll; nil if all are to be read from their heads.
func (l *lanes) spans() (out [][]plan.Span) {
	for i, c := range l.all {
		if s := c.starts.Spans(); s != nil {
			if out == nil {
				out = make([][]plan.Span, len(l.all))
			}
			out[i] = s
		}
	}
	return out
}

// took updates the lane from a claim. A full claim earns credit for two more, so a lane with a backlog
// gets all workers within a few claims. An empty lane costs one claim, not one for each worker.
func (l *lanes) took(c *lane, claim plan.Claim, found plan.Found) {
	if claim.Named {
		if found.Tasks == 0 {
			return
		}
		if c.head == nil { // it was true: more may follow
			c.head = &plan.Head{Position: found.First(), Since: claim.Began}
		}
	}
	c.starts.Took(claim, found, time.Now())
	if found.Tasks < claim.Limit {
		if c.polledAt.Before(claim.Began) {
			c.credit = 0
		} else { // the poll may have found a task that became ready after the claim
			c.credit = min(c.credit, 1)
		}
		return
	}
	c.credit += 2
	if c.h.Kind == handler.KindLeased { // the next is one claim as well
		c.credit = max(c.credit, 2*claim.Limit)
	}
	c.credit = min(c.credit, l.workers)
	if claim.Start.Due == nil {
		c.urgent = max(c.urgent, found.LeastUrgent()) // more urgent tasks were claimed before
	}
}
