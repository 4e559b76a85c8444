package relay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Claimed tasks leave dead entries in a lane's index, which every reader from its head walks over until vacuum has removed them, and
// a forgotten transaction keeps vacuum from that. So a relay remembers how far it has eaten, and starts there. That is a hint: a
// task below, which was committed late or came back, is found by a full poll, which reads all.
const (
	floorAfter    = 100                   // tasks claimed from one class, until when its dead entries are walked over
	floorLag      = 20 * time.Millisecond // a floor is where claims were that long ago: most late commits are above it
	floorBacklog  = time.Second           // but for a head that has waited for longer: who took its id then has committed by now
	floorFor      = 10 * time.Second      // after that, if full polls are quick, claims begin at the head again
	maxFloors     = 4                     // of one lane
	quickPoll     = 2 * time.Millisecond  // a full poll that takes less than that longer costs nothing
	fullPollShare = 200                   // else it takes one part of so many of the time, as it slows down claims,
	idlePollShare = 20                    // or of so many where there is nothing to claim,
	maxPollGap    = 5 * time.Second       // and is made at least so often
	maxNear       = 1 << 16
	sampledPolls  = 10 // the least of so many tells what a poll takes: the first one of each session is slow, as it plans
)

// class is the tasks of a lane with one priority and attempt: in it the order is that of their ids.
type class struct{ priority, attempt int }

func (p pivot) class() class { return class{p.priority, p.attempt} }

func (p pivot) compare(q pivot) int {
	return cmp.Or(cmp.Compare(p.priority, q.priority), cmp.Compare(p.attempt, q.attempt), cmp.Compare(p.taskID, q.taskID))
}

func later(p, q pivot) pivot {
	if q.compare(p) > 0 {
		return q
	}
	return p
}

func (p pivot) plus(ids int64) pivot {
	p.taskID += ids
	return p
}

// floor is how far a class was eaten.
type floor struct {
	at, mid, top pivot // where claims begin; where they will after the lag; the last task that was claimed
	next         pivot // where they begin in a backlog: behind what others took, or will
	turned       time.Time
	eaten        int
	first        int64 // the task from which on eaten are counted
}

// near is among how many ids behind the floor n tasks may be expected, as far as claims tell; 0 is unknown.
func (f *floors) near(from *pivot, n int) int64 {
	if from == nil || f.of[from.class()] == nil {
		return 0
	}
	one := f.of[from.class()]
	return min(int64(n)*max((one.top.taskID-one.first)/int64(one.eaten), 1), maxNear)
}

// floors are those of one lane.
type floors struct {
	random  bool // claims are all over the lane: only what polls see says where it begins
	of      map[class]*floor
	started int       // how often one was moved back; claims that began before say nothing
	since   time.Time // of the first bite
}

// forget lets claims begin at the head again.
func (f *floors) forget() { f.of = nil }

// bite is what a claim took of one class.
type bite struct {
	last  pivot
	tasks int
}

// bites are those of a claim's rows, which are in the order of the lane. A lease has counted the attempt.
func bites(rows []*row, leased bool) (out []bite) {
	for _, r := range rows {
		p := pivot{r.priority, r.attempt, r.id}
		if leased && !r.lostBy.Valid {
			p.attempt--
		}
		if n := len(out); n == 0 || out[n-1].last.class() != p.class() {
			out = append(out, bite{})
		}
		b := &out[len(out)-1]
		b.last, b.tasks = p, b.tasks+1
	}
	return out
}

// ate notes a claim that was begun when started was as given.
func (f *floors) ate(all []bite, started int, now time.Time) {
	if f.of == nil {
		f.of, f.since = map[class]*floor{}, now
	}
	for _, b := range all {
		one := f.of[b.last.class()]
		if one == nil {
			if len(f.of) == maxFloors {
				f.drop()
			}
			first := b.last
			if f.random {
				first.taskID = math.MinInt64
			}
			one = &floor{at: first, mid: first, top: first, next: first, turned: now, first: b.last.taskID}
			f.of[b.last.class()] = one
		}
		one.eaten += b.tasks
		if f.random {
			continue
		}
		if started == f.started {
			one.top, one.next = later(one.top, b.last), later(one.next, b.last.plus(1))
		}
		if now.Sub(one.turned) >= floorLag {
			one.at, one.mid, one.turned = one.mid, one.top, now
		}
	}
}

// drop forgets the class that was eaten from the longest ago.
func (f *floors) drop() {
	var oldest class
	for c, one := range f.of {
		if o := f.of[oldest]; o == nil || one.turned.Before(o.turned) {
			oldest = c
		}
	}
	delete(f.of, oldest)
}

// apart reports whether claims that are under way have each its own tasks.
func (f *floors) apart(h *head, now time.Time) bool {
	one := f.of[h.class()]
	return one != nil && one.eaten >= floorAfter && !f.random && now.Sub(h.since) > floorBacklog
}

// begin is where a claim begins when the latest poll saw that head; nil is at the start. In a backlog it begins behind the last one, whose tasks
// are locked, or will be: each would be walked over, at the price of a lock. The last one takes limit tasks, so it takes all that there
// are among as many ids, and what it does not take sends the next one back. A limit of 0 is one that is not known.
func (f *floors) begin(h *head, limit int, now time.Time) *pivot {
	if one := f.of[h.class()]; one != nil && one.eaten >= floorAfter {
		at := one.at
		if now.Sub(h.since) > floorBacklog {
			at = later(at, one.next)
			one.next = at.plus(int64(limit))
		}
		return &at
	}
	for _, one := range f.of {
		if one.eaten >= floorAfter {
			return &h.pivot
		}
	}
	return nil
}

// saw moves a floor back to a task below it; in random order on to the task.
func (f *floors) saw(h *head) {
	if h == nil {
		return
	}
	if one := f.of[h.class()]; one != nil && (f.random || h.compare(one.at) < 0) {
		one.at, one.mid, one.top, one.next = h.pivot, h.pivot, h.pivot, h.pivot
		f.started++
	}
}

// ranShort notes a claim that found less than it might, or failed: what is left of a backlog lies behind where the last one ended, as others had
// locked it or gave it back. The floor goes on all the same: where tasks are claimed as fast as they come, each claim is short.
func (f *floors) ranShort() {
	for _, one := range f.of {
		one.next = one.at
	}
}

// span is a part of a lane that an index scan begins and ends at its bounds, which it does only where the bound is on the first column that
// is not given by equality: all tasks of some priorities, or, of one priority, those from a task on, up to an attempt.
type span struct {
	first pivot
	last  class
}

const maxColumn = math.MaxInt16 // of priority and attempt

// spans are the lane without what was eaten; nil is all of it.
func (f *floors) spans() (out []span) {
	var deep []*floor
	for _, one := range f.of {
		if one.eaten >= floorAfter {
			deep = append(deep, one)
		}
	}
	if deep == nil {
		return nil
	}
	slices.SortFunc(deep, func(a, b *floor) int { return a.at.compare(b.at) })
	next := class{math.MinInt16, 0} // the first that no span has
	for _, one := range deep {
		c := one.at.class()
		out = append(between(out, next, c), span{one.at, c})
		next = class{c.priority, c.attempt + 1}
	}
	// What follows the last floor in its priority is read on.
	out[len(out)-1].last.attempt = maxColumn
	if next.priority == maxColumn {
		return out
	}
	return append(out, span{class{next.priority + 1, 0}.start(), class{maxColumn, maxColumn}})
}

// start is before all tasks of the class.
func (c class) start() pivot { return pivot{c.priority, c.attempt, math.MinInt64} }

// between adds the classes from one on to before the other.
func between(out []span, from, to class) []span {
	if from.priority < to.priority && from.attempt > 0 {
		out = append(out, span{from.start(), class{from.priority, maxColumn}})
		from = class{from.priority + 1, 0}
	}
	if from.priority < to.priority {
		out = append(out, span{from.start(), class{to.priority - 1, maxColumn}})
		from = class{to.priority, 0}
	}
	if from.attempt < to.attempt {
		out = append(out, span{from.start(), class{to.priority, to.attempt - 1}})
	}
	return out
}

// fullPolls decides when a poll reads lanes from their heads. What that takes is compared with what other polls took lately: where the machine is
// slow, all are.
type fullPolls struct {
	full, others pollTimes
}

// pollTimes are what the latest polls took.
type pollTimes struct {
	took [sampledPolls]time.Duration
	n    int
	last time.Time
}

func (s *pollTimes) add(took time.Duration, now time.Time) {
	s.took[s.n%sampledPolls], s.last = took, now
	s.n++
}

// due reports whether the next poll is to be a full one. idle: the latest ones found nothing.
func (s *fullPolls) due(idle bool, now time.Time) bool {
	d, share := s.cost(now), time.Duration(fullPollShare)
	if idle {
		share = idlePollShare
	}
	return d < quickPoll || now.Sub(s.full.last) >= min(share*d, maxPollGap)
}

// cost is how much longer full polls take.
func (s *fullPolls) cost(now time.Time) time.Duration {
	d := slices.Min(s.full.took[:])
	if now.Sub(s.others.last) < maxPollGap {
		d -= slices.Min(s.others.took[:])
	}
	return d
}

func (s *fullPolls) note(full bool, took time.Duration, now time.Time) {
	if full {
		s.full.add(took, now)
	} else {
		s.others.add(took, now)
	}
}
