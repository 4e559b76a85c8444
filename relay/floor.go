package relay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Claimed tasks leave dead entries in a lane's index, which every reader from its head walks over until vacuum has removed them, and
// a forgotten transaction keeps vacuum from that. So a relay remembers how far it has eaten, and starts there. That is a hint: a
// task below, which was committed late or came back, is found by a look that reads all.
const (
	floorAfter   = 100                   // tasks claimed from one class, until when its dead entries are walked over
	floorLag     = 20 * time.Millisecond // a floor is where claims were that long ago: most late commits are above it
	floorBacklog = time.Second           // but for a head that has waited for longer: who took its id then has committed by now
	floorFor     = 10 * time.Second      // after that, if looks at all are quick, claims begin at the head again
	maxFloors    = 4                     // of one lane
	quickLook    = 2 * time.Millisecond  // a look at all that takes less costs nothing
	lookShare    = 100                   // else it takes one part of so many of the time,
	maxLookGap   = 5 * time.Second       // and is made at least so often
	sampleLooks  = 3                     // the least of so many tells what a look at all takes
)

// class is the tasks of a lane with one priority and attempt: in it the order is that of their ids.
type class struct{ priority, attempt int }

func (p pivot) class() class { return class{p.priority, p.attempt} }

func (p pivot) compare(q pivot) int {
	return cmp.Or(cmp.Compare(p.priority, q.priority), cmp.Compare(p.attempt, q.attempt), cmp.Compare(p.taskID, q.taskID))
}

// floor is how far a class was eaten.
type floor struct {
	at, mid, top pivot // where claims begin; where they will after the lag; the last task that was claimed
	turned       time.Time
	eaten        int
}

// floors are those of one lane.
type floors struct {
	random  bool // claims are all over the lane: only what looks see says where it begins
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
			one = &floor{at: first, mid: first, top: first, turned: now}
			f.of[b.last.class()] = one
		}
		one.eaten += b.tasks
		if f.random {
			continue
		}
		if started == f.started && b.last.compare(one.top) > 0 {
			one.top = b.last
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

// from is where a claim begins when the latest look saw that head; nil is at the start. In a backlog it begins where the last one ended,
// as its tasks are still locked, and those are walked over as well.
func (f *floors) from(h *head, now time.Time) *pivot {
	if one := f.of[h.class()]; one != nil && one.eaten >= floorAfter {
		at := one.at
		if now.Sub(h.since) > floorBacklog {
			at = one.top
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
		one.at, one.mid, one.top = h.pivot, h.pivot, h.pivot
		f.started++
	}
}

// ranShort notes a claim that found less than it might: what is left of the lane lies behind where the last one ended, as others had
// locked it or gave it back.
func (f *floors) ranShort() {
	for _, one := range f.of {
		one.mid, one.top = one.at, one.at
	}
}

// span is a part of a lane: from first to before end.
type span struct{ first, end pivot }

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
	at := pivot{math.MinInt16, 0, math.MinInt64}
	for _, one := range deep {
		c := one.at.class()
		end := pivot{c.priority, c.attempt, math.MaxInt64}
		out = append(out, span{at, pivot{c.priority, c.attempt, math.MinInt64}}, span{one.at, end})
		at = end
	}
	return append(out, span{at, pivot{math.MaxInt16, math.MaxInt16, math.MaxInt64}})
}

// sweeps decides when a look reads lanes from their heads.
type sweeps struct {
	took [sampleLooks]time.Duration
	n    int
	last time.Time
}

// due reports whether the next look is to read all.
func (s *sweeps) due(now time.Time) bool {
	d := s.cost()
	return d < quickLook || now.Sub(s.last) >= min(lookShare*d, maxLookGap)
}

func (s *sweeps) cost() time.Duration { return slices.Min(s.took[:]) }

func (s *sweeps) made(took time.Duration, now time.Time) {
	s.took[s.n%sampleLooks], s.last = took, now
	s.n++
}
