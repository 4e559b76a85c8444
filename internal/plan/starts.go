package plan

import "time"

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
