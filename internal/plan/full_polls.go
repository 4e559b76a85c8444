package plan

import (
	"slices"
	"time"
)

const (
	QuickPoll     = 2 * time.Millisecond // a full poll that takes less than that longer costs nothing
	fullPollShare = 200                  // else it takes one part of so many of the time, as it slows down claims,
	idlePollShare = 20                   // or of so many where there is nothing to claim,
	maxPollGap    = 5 * time.Second      // and is made at least so often
	sampledPolls  = 10                   // the least of so many tells what a poll takes: the first one of each session is slow, as it plans
)

// FullPolls decides when a poll reads lanes from their heads. What that takes is compared with what
// other polls took lately: where the machine is slow, all are.
type FullPolls struct {
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

// Due reports whether the next poll is to be a full one. idle: the latest ones found nothing.
func (s *FullPolls) Due(idle bool, now time.Time) bool {
	d, share := s.Cost(now), time.Duration(fullPollShare)
	if idle {
		share = idlePollShare
	}
	return d < QuickPoll || now.Sub(s.full.last) >= min(share*d, maxPollGap)
}

// Cost is how much longer full polls take.
func (s *FullPolls) Cost(now time.Time) time.Duration {
	d := slices.Min(s.full.took[:])
	if now.Sub(s.others.last) < maxPollGap {
		d -= slices.Min(s.others.took[:])
	}
	return d
}

func (s *FullPolls) Note(full bool, took time.Duration, now time.Time) {
	if full {
		s.full.add(took, now)
	} else {
		s.others.add(took, now)
	}
}
