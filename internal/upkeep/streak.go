package upkeep

import "time"

// streak is beats that came through without a gap, without a step of the server's clock, and in the
// same database.
type streak struct {
	first, last time.Time
	ahead       time.Duration // of the server's clock, as the last beat saw it
}

// beat notes a beat. restored: the database has lost the beat before, as all relays' latest ones.
func (s *streak) beat(sent time.Time, ahead time.Duration, restored bool) {
	if restored || sent.Sub(s.last) > beatGap {
		s.first = sent
	}
	s.stepped(sent, ahead)
	s.last, s.ahead = sent, ahead
}

// stepped reports whether the server's clock, or this process's, has been set since the last beat.
// All relays look dead then, or alive for long, until they renew: the streak begins anew.
func (s *streak) stepped(now time.Time, ahead time.Duration) bool {
	if (ahead - s.ahead).Abs() < Interval {
		return false
	}
	s.first = now
	return true
}

// settled reports whether this relay has beaten for as long as leases last, up to now: after an
// outage of the database all relays look dead, and they should renew first.
func (s *streak) settled(now time.Time) bool {
	return s.last.Sub(s.first) >= takeoverAfter-Interval && now.Sub(s.first) >= takeoverAfter && now.Sub(s.last) <= beatGap
}
