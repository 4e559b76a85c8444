package plan

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	dueTurn    = 10              // each claim of so many goes by due time
	dueRestart = 5 * time.Second // after which claims by due time begin at the oldest task again
)

// Starts decides where the claims of one lane begin: in its order at the watermark, in random order at
// a pivot before that, and each tenth by due time.
//
// Claims by due time begin at the last task that such a claim took, as dead entries and locked tasks
// are before it. Every few seconds they begin at the oldest task, to find those that were committed
// late or came back.
type Starts struct {
	Random     bool
	watermarks watermarks
	urgent     int // the least priority that the next task in the lane's order may have
	turns      int // claims in the lane's order that found tasks, since the last claim by due time
	due        Due // the last task of the latest claim by due time
	dueSince   time.Time
}

// Next is the next claim of up to limit tasks of a lane with that head. exact is false if limits of
// the type may leave the claim less.
func (s *Starts) Next(head *Head, limit int, exact bool, now time.Time) Claim {
	if s.turns < dueTurn-1 {
		return s.inOrder(head, limit, exact, s.Random, now)
	}
	s.turns = 0
	if now.Sub(s.dueSince) >= dueRestart {
		s.due, s.dueSince = DueStart, now
	}
	due := s.due
	return Claim{Start: Start{Due: &due}, Limit: limit, Began: now, tenth: true}
}

// Named is the claim that a wake-up asks for, of a class of an idle lane.
func (s *Starts) Named(c Class, limit int, exact bool, now time.Time) Claim {
	claim := s.inOrder(&Head{Position: c.Start(), Since: now}, limit, exact, false, now)
	claim.Named = true
	return claim
}

func (s *Starts) inOrder(head *Head, limit int, exact, random bool, now time.Time) Claim {
	c := Claim{Limit: limit, Began: now, movedBack: s.watermarks.movedBack}
	if random {
		c.Start.Pivot = head.pivot()
	}
	if !exact || random { // claims at pivots hold other tasks than those at the watermark
		limit = 0
	}
	c.Start.From = s.watermarks.begin(head, limit, now)
	return c
}

// Separate reports whether concurrent claims of a lane with that head reach different tasks.
func (s *Starts) Separate(head *Head, now time.Time) bool {
	return !s.Random && s.watermarks.separate(head, now)
}

// NotMade notes a claim that was not made: if it was by due time, so is the next claim.
func (s *Starts) NotMade(c Claim) {
	if c.tenth {
		s.turns = dueTurn
	}
}

// Failed notes a claim that failed.
func (s *Starts) Failed() { s.watermarks.noteShort() }

// Took notes what a claim found. Tasks by due time say nothing of those before them in the lane.
func (s *Starts) Took(c Claim, f Found, now time.Time) {
	full := f.Tasks >= c.Limit
	switch {
	case !c.tenth:
		s.turns += min(f.Tasks, 1)
		s.watermarks.noteClaimed(f.classes, c.movedBack, s.Random, now)
		if full {
			s.urgent = max(s.urgent, f.leastUrgent()) // more urgent tasks were claimed before
		}
	case f.Tasks > 0:
		s.due = f.lastDue
	}
	if !full {
		s.watermarks.noteShort()
	}
}

// Polled notes the head that a poll found, or nil.
func (s *Starts) Polled(head *Head) {
	if head != nil {
		s.urgent = head.Priority
		s.watermarks.adjust(head.Position, s.Random)
	}
}

// Returned notes a task that is ready: claims begin at it, if they would begin behind it.
func (s *Starts) Returned(at Position) { s.watermarks.adjust(at, false) }

// ForgetOld lets claims begin at the head again, if the watermarks are old.
func (s *Starts) ForgetOld(now time.Time) { s.watermarks.forgetOld(now) }

// Spans are the lane without the tasks that were claimed; nil is all of it.
func (s *Starts) Spans() []Span { return s.watermarks.spans() }

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

// requestMark is the first request for a promotion by key that polls look for. Requests that were met leave
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

// Position is a place in the order of a lane, whether a task has it or not. Fewer attempts come
// first, so that tasks that fail do not stand before fresh ones.
type Position struct {
	Priority, Attempt int
	TaskID            int64
}

// Class is the tasks of a lane with one priority and attempt: in it the order is that of their ids.
type Class struct{ Priority, Attempt int }

// Class is the class of the position.
func (p Position) Class() Class { return Class{p.Priority, p.Attempt} }

// Compare is by the lane's order.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Priority, q.Priority), cmp.Compare(p.Attempt, q.Attempt),
		cmp.Compare(p.TaskID, q.TaskID))
}

// Start is before all tasks of the class.
func (c Class) Start() Position { return Position{c.Priority, c.Attempt, math.MinInt64} }

// LaneStart is before all tasks.
var LaneStart = Position{math.MinInt16, 0, math.MinInt64}

// Head is the first task of a lane.
type Head struct {
	Position
	LastID int64     // of the lane's tasks with the same priority and attempt; only in random order
	Since  time.Time // when it became due, by this process's clock
}

// pivot is a random place among the tasks of the head's class; nil if the head is the last task.
func (h *Head) pivot() *Position {
	span := h.LastID - h.TaskID
	if span <= 0 {
		return nil
	}
	return &Position{h.Priority, h.Attempt, h.TaskID + rand.Int64N(span+1)}
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
