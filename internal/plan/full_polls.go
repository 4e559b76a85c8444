package plan

import (
	"slices"
	"time"
)

const (
	quickPoll     = 2 * time.Millisecond // a full poll that takes less costs nothing
	fullPollShare = 50                   // else it takes one part of so many of the time, as it slows down claims,
	maxPollGap    = 5 * time.Second      // and is made at least so often
	sampledPolls  = 10                   // the least of so many tells what one takes: a session's first one plans
)

// FullPolls decides when a poll reads lanes from their heads.
type FullPolls struct {
	took [sampledPolls]time.Duration // of the latest
	n    int
	last time.Time
}

// Due reports whether the next poll is to be a full one.
func (s *FullPolls) Due(now time.Time) bool {
	return s.Quick() || now.Sub(s.last) >= min(fullPollShare*slices.Min(s.took[:]), maxPollGap)
}

// Quick reports whether full polls cost nothing.
func (s *FullPolls) Quick() bool { return slices.Min(s.took[:]) < quickPoll }

// Note notes what a full poll took.
func (s *FullPolls) Note(took time.Duration, now time.Time) {
	s.took[s.n%sampledPolls], s.last = took, now
	s.n++
}
