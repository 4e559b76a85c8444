package plan

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
	WatermarkAfter   = 100                   // tasks claimed from one class, until when its dead entries are walked over
	watermarkLag     = 20 * time.Millisecond // a watermark is where claims were that long ago: most late commits are above it
	watermarkBacklog = time.Second           // but for a head that has waited for longer: who took its id then has committed by now
	watermarkFor     = 10 * time.Second      // after that, if full polls are quick, claims begin at the head again
	maxWatermarks    = 4                     // of one lane
)

// Class is the tasks of a lane with one priority and attempt: in it the order is that of their ids.
type Class struct{ Priority, Attempt int }

func (p Position) Class() Class { return Class{p.Priority, p.Attempt} }

func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Priority, q.Priority), cmp.Compare(p.Attempt, q.Attempt), cmp.Compare(p.TaskID, q.TaskID))
}

func later(p, q Position) Position {
	if q.Compare(p) > 0 {
		return q
	}
	return p
}

func (p Position) plus(ids int64) Position {
	p.TaskID += ids
	return p
}

// watermark is the position in a class below which all was claimed.
type watermark struct {
	at, mid, top Position // where claims begin; where they will after the lag; the last task that was claimed
	next         Position // where they begin in a backlog: behind what others took, or will
	movedAt      time.Time
	claimed      int // tasks
}

// Watermarks are those of one lane.
type Watermarks struct {
	Random  bool // claims are all over the lane: only what polls see says where it begins
	of      map[Class]*watermark
	Started int       // how often one was moved back; claims that began before say nothing
	since   time.Time // of the first claim
}

// ForgetOld lets claims begin at the head again, unless the first claim was lately.
func (w *Watermarks) ForgetOld(now time.Time) {
	if now.Sub(w.since) > watermarkFor {
		w.of = nil
	}
}

// ClaimedRun is what a claim took of one class.
type ClaimedRun struct {
	Last  Position
	Tasks int
}

// NoteClaimed notes a claim that was begun when started was as given.
func (w *Watermarks) NoteClaimed(all []ClaimedRun, started int, now time.Time) {
	if w.of == nil {
		w.of, w.since = map[Class]*watermark{}, now
	}
	for _, run := range all {
		one := w.of[run.Last.Class()]
		if one == nil {
			if len(w.of) == maxWatermarks {
				w.drop()
			}
			first := run.Last
			if w.Random {
				first.TaskID = math.MinInt64
			}
			one = &watermark{at: first, mid: first, top: first, next: first, movedAt: now}
			w.of[run.Last.Class()] = one
		}
		one.claimed += run.Tasks
		if w.Random {
			continue
		}
		if started == w.Started {
			one.top, one.next = later(one.top, run.Last), later(one.next, run.Last.plus(1))
		}
		if now.Sub(one.movedAt) >= watermarkLag {
			one.at, one.mid, one.movedAt = one.mid, one.top, now
		}
	}
}

// drop forgets the class whose watermark moved the longest ago.
func (w *Watermarks) drop() {
	var oldest Class
	for c, one := range w.of {
		if o := w.of[oldest]; o == nil || one.movedAt.Before(o.movedAt) {
			oldest = c
		}
	}
	delete(w.of, oldest)
}

// SeparateClaims reports whether claims that are under way reach different tasks.
func (w *Watermarks) SeparateClaims(h *Head, now time.Time) bool {
	one := w.of[h.Class()]
	return one != nil && one.claimed >= WatermarkAfter && !w.Random && now.Sub(h.Since) > watermarkBacklog
}

// Begin is where a claim begins when the latest poll saw that head; nil is at the start. In a
// backlog it begins behind the last one, whose tasks are locked, or will be: each would be walked
// over, at the price of a lock. The last one takes limit tasks, so it takes all that there are
// among as many ids, and what it does not take sends the next one back. A limit of 0 is one that is
// not known.
func (w *Watermarks) Begin(h *Head, limit int, now time.Time) *Position {
	if one := w.of[h.Class()]; one != nil && one.claimed >= WatermarkAfter {
		at := one.at
		if now.Sub(h.Since) > watermarkBacklog {
			at = later(at, one.next)
			one.next = at.plus(int64(limit))
		}
		return &at
	}
	for _, one := range w.of {
		if one.claimed >= WatermarkAfter {
			return &h.Position
		}
	}
	return nil
}

// Adjust moves a watermark back to a task below it; in random order on to the task.
func (w *Watermarks) Adjust(h *Head) {
	if h == nil {
		return
	}
	if one := w.of[h.Class()]; one != nil && (w.Random || h.Compare(one.at) < 0) {
		one.at, one.mid, one.top, one.next = h.Position, h.Position, h.Position, h.Position
		w.Started++
	}
}

// NoteShort notes a claim that found less than it might, or failed: what is left of a backlog lies
// behind where the last one ended, as others had locked it or gave it back. The watermark goes on
// all the same: where tasks are claimed as fast as they come, each claim is short.
func (w *Watermarks) NoteShort() {
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

// Spans are the lane without what was claimed; nil is all of it.
func (w *Watermarks) Spans() (out []Span) {
	var deep []*watermark
	for _, one := range w.of {
		if one.claimed >= WatermarkAfter {
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

// Start is before all tasks of the class.
func (c Class) Start() Position { return Position{c.Priority, c.Attempt, math.MinInt64} }

// between adds the classes from one on to before the other.
func between(out []Span, from, to Class) []Span {
	if from.Priority < to.Priority && from.Attempt > 0 {
		out = append(out, Span{from.Start(), Class{from.Priority, maxColumn}})
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
