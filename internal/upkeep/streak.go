package upkeep

import "time"

// streak is beats that came through without a gap.
type streak struct{ first, last time.Time }

func (s *streak) beat(sent time.Time) {
	if sent.Sub(s.last) > beatGap {
		s.first = sent
	}
	s.last = sent
}

// settled reports whether this relay has beaten for as long as leases last, up to now: after an
// outage of the database all relays look dead, and they should renew first.
func (s *streak) settled(now time.Time) bool {
	return s.last.Sub(s.first) >= takeoverAfter-Interval && now.Sub(s.first) >= takeoverAfter && now.Sub(s.last) <= beatGap
}
