package upkeep

import "time"

const (
	takeoverAfter = 10 * time.Second // own unbroken beats before taking over from others
	// beatGap is what breaks them. Another relay's last beat before an outage may be an interval
	// older than the own, and its lease must not have run out when the own outage counts as none.
	beatGap = Interval + 2*TakeoverInterval
)

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
