package relay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Claimed tasks leave dead entries in a lane's index, which every reader from its head walks over
// until vacuum has removed them, and a forgotten transaction keeps vacuum from that. So a relay
// keeps a watermark, the position below which all was claimed, and claims begin there. That is a
// hint: a full poll, which reads all, finds a task below it that was committed late or came back.
const (
	watermarkAfter   = 100                   // tasks claimed from one class, until when its dead entries are walked over
	watermarkLag     = 20 * time.Millisecond // a watermark is where claims were that long ago: most late commits are above it
	watermarkBacklog = time.Second           // but for a head that has waited for longer: who took its id then has committed by now
	watermarkFor     = 10 * time.Second      // after that, if full polls are quick, claims begin at the head again
	maxWatermarks    = 4                     // of one lane
	maxIDSpan        = 1 << 16
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

// watermark is the position in a class below which all was claimed.
type watermark struct {
	at, mid, top pivot // where claims begin; where they will after the lag; the last task that was claimed
	next         pivot // where they begin in a backlog: behind what others took, or will
	movedAt      time.Time
	claimed      int   // tasks
	first        int64 // the task from which on claimed ones are counted
}

// idSpan is among how many ids from the watermark on n tasks may be expected, as far as claims
// tell; 0 is unknown.
func (w *watermarks) idSpan(from *pivot, n int) int64 {
	if from == nil || w.of[from.class()] == nil {
		return 0
	}
	one := w.of[from.class()]
	return min(int64(n)*max((one.top.taskID-one.first)/int64(one.claimed), 1), maxIDSpan)
}

// watermarks are those of one lane.
type watermarks struct {
	random  bool // claims are all over the lane: only what polls see says where it begins
	of      map[class]*watermark
	started int       // how often one was moved back; claims that began before say nothing
	since   time.Time // of the first claim
}

// forget lets claims begin at the head again.
func (w *watermarks) forget() { w.of = nil }

// claimedRun is what a claim took of one class.
type claimedRun struct {
	last  pivot
	tasks int
}

// claimedRuns are those of a claim's rows, which are in the order of the lane. A lease has counted
// the attempt.
func claimedRuns(rows []*row, leased bool) (out []claimedRun) {
	for _, r := range rows {
		p := pivot{r.priority, r.attempt, r.id}
		if leased && !r.lostBy.Valid {
			p.attempt--
		}
		if n := len(out); n == 0 || out[n-1].last.class() != p.class() {
			out = append(out, claimedRun{})
		}
		run := &out[len(out)-1]
		run.last, run.tasks = p, run.tasks+1
	}
	return out
}

// noteClaimed notes a claim that was begun when started was as given.
func (w *watermarks) noteClaimed(all []claimedRun, started int, now time.Time) {
	if w.of == nil {
		w.of, w.since = map[class]*watermark{}, now
	}
	for _, run := range all {
		one := w.of[run.last.class()]
		if one == nil {
			if len(w.of) == maxWatermarks {
				w.drop()
			}
			first := run.last
			if w.random {
				first.taskID = math.MinInt64
			}
			one = &watermark{at: first, mid: first, top: first, next: first, movedAt: now, first: run.last.taskID}
			w.of[run.last.class()] = one
		}
		one.claimed += run.tasks
		if w.random {
			continue
		}
		if started == w.started {
			one.top, one.next = later(one.top, run.last), later(one.next, run.last.plus(1))
		}
		if now.Sub(one.movedAt) >= watermarkLag {
			one.at, one.mid, one.movedAt = one.mid, one.top, now
		}
	}
}

// drop forgets the class whose watermark moved the longest ago.
func (w *watermarks) drop() {
	var oldest class
	for c, one := range w.of {
		if o := w.of[oldest]; o == nil || one.movedAt.Before(o.movedAt) {
			oldest = c
		}
	}
	delete(w.of, oldest)
}

// separateClaims reports whether claims that are under way reach different tasks.
func (w *watermarks) separateClaims(h *laneHead, now time.Time) bool {
	one := w.of[h.class()]
	return one != nil && one.claimed >= watermarkAfter && !w.random && now.Sub(h.since) > watermarkBacklog
}

// begin is where a claim begins when the latest poll saw that head; nil is at the start. In a
// backlog it begins behind the last one, whose tasks are locked, or will be: each would be walked
// over, at the price of a lock. The last one takes limit tasks, so it takes all that there are
// among as many ids, and what it does not take sends the next one back. A limit of 0 is one that is
// not known.
func (w *watermarks) begin(h *laneHead, limit int, now time.Time) *pivot {
	if one := w.of[h.class()]; one != nil && one.claimed >= watermarkAfter {
		at := one.at
		if now.Sub(h.since) > watermarkBacklog {
			at = later(at, one.next)
			one.next = at.plus(int64(limit))
		}
		return &at
	}
	for _, one := range w.of {
		if one.claimed >= watermarkAfter {
			return &h.pivot
		}
	}
	return nil
}

// adjust moves a watermark back to a task below it; in random order on to the task.
func (w *watermarks) adjust(h *laneHead) {
	if h == nil {
		return
	}
	if one := w.of[h.class()]; one != nil && (w.random || h.compare(one.at) < 0) {
		one.at, one.mid, one.top, one.next = h.pivot, h.pivot, h.pivot, h.pivot
		w.started++
	}
}

// noteShort notes a claim that found less than it might, or failed: what is left of a backlog lies
// behind where the last one ended, as others had locked it or gave it back. The watermark goes on
// all the same: where tasks are claimed as fast as they come, each claim is short.
func (w *watermarks) noteShort() {
	for _, one := range w.of {
		one.next = one.at
	}
}

// span is a part of a lane that an index scan begins and ends at its bounds, which it does only
// where the bound is on the first column that is not given by equality: all tasks of some
// priorities, or, of one priority, those from a task on, up to an attempt.
type span struct {
	first pivot
	last  class
}

const maxColumn = math.MaxInt16 // of priority and attempt

// spans are the lane without what was claimed; nil is all of it.
func (w *watermarks) spans() (out []span) {
	var deep []*watermark
	for _, one := range w.of {
		if one.claimed >= watermarkAfter {
			deep = append(deep, one)
		}
	}
	if deep == nil {
		return nil
	}
	slices.SortFunc(deep, func(a, b *watermark) int { return a.at.compare(b.at) })
	next := class{math.MinInt16, 0} // the first that no span has
	for _, one := range deep {
		c := one.at.class()
		out = append(between(out, next, c), span{one.at, c})
		next = class{c.priority, c.attempt + 1}
	}
	// What follows the last watermark in its priority is read on.
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
