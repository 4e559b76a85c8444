package plan

import (
	"math"
	"slices"
	"time"
)

// Claimed tasks leave dead entries in a lane's index. Each reader from the head walks over them until
// vacuum has removed them, and a forgotten transaction keeps vacuum from that. So a relay keeps a
// watermark, the position below which all tasks were claimed, and claims begin there. It is a hint: a
// full poll finds a task below it that was committed late or came back.
const (
	watermarkAfter   = 100                   // tasks claimed from a class before it has a watermark
	watermarkLag     = 20 * time.Millisecond // between a claim and the watermark: most late commits are above it
	watermarkBacklog = time.Second           // a head that waits for longer is of a backlog, without late commits
	watermarkFor     = 10 * time.Second      // after that, if full polls are quick, claims begin at the head again
	maxWatermarks    = 4                     // of one lane
)

// watermark is the position in a class below which all tasks were claimed.
type watermark struct {
	at, pending, last Position // where claims begin; where they begin after the lag; the last claimed task
	next              Position // where claims of a backlog begin: behind the tasks of the claims before
	movedAt           time.Time
	claimed           int // tasks
}

// watermarks are those of one lane.
type watermarks struct {
	of        map[Class]*watermark
	movedBack int       // how often a watermark was moved back: claims that began before do not move it
	since     time.Time // of the first claim
}

// forgetOld lets claims begin at the head again, unless the first claim was lately.
func (w *watermarks) forgetOld(now time.Time) {
	if now.Sub(w.since) > watermarkFor {
		w.of = nil
	}
}

// noteClaimed notes a claim that began when movedBack was as given. In random order the claimed tasks
// are all over the lane, and only polls move a watermark.
func (w *watermarks) noteClaimed(all []classFound, movedBack int, random bool, now time.Time) {
	if w.of == nil {
		w.of, w.since = map[Class]*watermark{}, now
	}
	for _, found := range all {
		one := w.of[found.last.Class()]
		if one == nil {
			if len(w.of) == maxWatermarks {
				w.drop()
			}
			first := found.last
			if random {
				first = first.Class().Start()
			}
			one = &watermark{movedAt: now}
			one.reset(first)
			w.of[first.Class()] = one
		}
		one.claimed += found.tasks
		if random {
			continue
		}
		if movedBack == w.movedBack {
			one.last, one.next = later(one.last, found.last), later(one.next, found.last.plus(1))
		}
		if now.Sub(one.movedAt) >= watermarkLag {
			one.at, one.pending, one.movedAt = one.pending, one.last, now
		}
	}
}

func (one *watermark) reset(at Position) { one.at, one.pending, one.last, one.next = at, at, at, at }

// drop forgets the class whose watermark moved the longest ago.
func (w *watermarks) drop() {
	var oldest Class
	for c, one := range w.of {
		if o := w.of[oldest]; o == nil || one.movedAt.Before(o.movedAt) {
			oldest = c
		}
	}
	delete(w.of, oldest)
}

// separate reports whether concurrent claims reach different tasks.
func (w *watermarks) separate(h *Head, now time.Time) bool {
	one := w.of[h.Class()]
	return one != nil && one.claimed >= watermarkAfter && now.Sub(h.Since) > watermarkBacklog
}

// begin is where a claim begins when the latest poll saw that head; nil is the start of the lane. In a
// backlog it begins behind the claim before, whose rows are locked, as skipping them costs time. That
// claim takes limit tasks, so it reaches at most limit ids further where no id is missing; where it
// takes less, noteShort sends the next claim back. A limit of 0 is unknown.
func (w *watermarks) begin(h *Head, limit int, now time.Time) *Position {
	if one := w.of[h.Class()]; one != nil && one.claimed >= watermarkAfter {
		at := one.at
		if now.Sub(h.Since) > watermarkBacklog {
			at = later(at, one.next)
			one.next = at.plus(int64(limit))
		}
		return &at
	}
	for _, one := range w.of {
		if one.claimed >= watermarkAfter {
			at := h.Position
			return &at
		}
	}
	return nil
}

// adjust moves a watermark back to a ready task below it; if random, to the task wherever it is.
func (w *watermarks) adjust(at Position, random bool) {
	if one := w.of[at.Class()]; one != nil && (random || at.Compare(one.at) < 0) {
		one.reset(at)
		w.movedBack++
	}
}

// noteShort notes a claim that found less than its limit, or failed. Other claims had locked the rest
// of the backlog, or gave it back, so the next claim begins at the watermark again.
func (w *watermarks) noteShort() {
	for _, one := range w.of {
		one.next = one.at
	}
}

// Span is a part of a lane that an index scan begins and ends at its bounds, which it does only
// where the bound is on the first column that is not given by equality: all tasks of some
// priorities, or, of one priority, those from a task on, up to an attempt.
type Span struct {
	First Position
	Last  Class
}

const maxColumn = math.MaxInt16 // of priority and attempt

// spans are the lane without the claimed tasks; nil is all of the lane.
func (w *watermarks) spans() (out []Span) {
	var deep []*watermark
	for _, one := range w.of {
		if one.claimed >= watermarkAfter {
			deep = append(deep, one)
		}
	}
	if deep == nil {
		return nil
	}
	slices.SortFunc(deep, func(a, b *watermark) int { return a.at.Compare(b.at) })
	next := Class{math.MinInt16, 0} // the first that no span has
	for _, one := range deep {
		c := one.at.Class()
		out = append(between(out, next, c), Span{one.at, c})
		next = Class{c.Priority, c.Attempt + 1}
	}
	// What follows the last watermark in its priority is read on.
	out[len(out)-1].Last.Attempt = maxColumn
	if next.Priority == maxColumn {
		return out
	}
	return append(out, Span{Class{next.Priority + 1, 0}.Start(), Class{maxColumn, maxColumn}})
}

// between adds the classes from one on to before the other.
func between(out []Span, from, to Class) []Span {
	if from.Priority < to.Priority && from.Attempt > 0 {
		if from.Attempt <= maxColumn {
			out = append(out, Span{from.Start(), Class{from.Priority, maxColumn}})
		}
		from = Class{from.Priority + 1, 0}
	}
	if from.Priority < to.Priority {
		out = append(out, Span{from.Start(), Class{to.Priority - 1, maxColumn}})
		from = Class{to.Priority, 0}
	}
	if from.Attempt < to.Attempt {
		out = append(out, Span{from.Start(), Class{to.Priority, to.Attempt - 1}})
	}
	return out
}

// requestMark is the first request for a head that polls look for. Requests that were met leave
// dead entries in their index, over which each poll from the first one on would walk while a
// forgotten transaction keeps vacuum away. Those before the mark were met, or commit late: a full
// poll finds them.
type requestMark struct {
	at, next int64
	movedAt  time.Time
}

// note notes the first request that a poll saw, or without any the last that there was. The mark is
// at one that was noted a while ago, so that most late commits are not before it.
func (m *requestMark) note(id int64, now time.Time) {
	m.at, m.next = min(m.at, id), min(m.next, id)
	if now.Sub(m.movedAt) >= watermarkLag {
		m.at, m.next, m.movedAt = m.next, id, now
	}
}
