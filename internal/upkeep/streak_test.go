package upkeep

import (
	"testing"
	"time"
)

// After an outage of the database each relay waits until the others have had time to renew.
func TestTakeoverWaitsForUnbrokenHeartbeats(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, c := range []struct {
		name  string
		beats []float64
		now   float64
		want  bool
	}{
		{"no beat", nil, 100, false},
		{"one beat", []float64{0}, 11, false},
		{"before 10 s", []float64{0, 3, 6, 9}, 9.9, false},
		{"after 10 s", []float64{0, 3, 6, 9}, 10.1, true},
		{"beats a little late", []float64{0, 4, 8, 12}, 12.1, true},
		{"the last beat is old", []float64{0, 3, 6, 9}, 15, false},
		{"after an outage of 6 s", []float64{0, 3, 6, 9, 12, 18}, 18.1, false},
		{"10 s after an outage of 6 s", []float64{0, 3, 6, 9, 12, 18, 21, 24, 27}, 28.1, true},
		{"after an outage of an hour", []float64{0, 3, 6, 9, 3600, 3603}, 3604, false},
	} {
		var s streak
		for _, b := range c.beats {
			s.beat(at(b), time.Hour, false)
		}
		if got := s.settled(at(c.now)); got != c.want {
			t.Errorf("%s: settled %v, want %v", c.name, got, c.want)
		}
	}
	// A step of the server's clock, seen by a beat or between two, has all relays look dead, or
	// alive for long, until they renew.
	for _, step := range []time.Duration{-24 * time.Hour, 5 * time.Second, 24 * time.Hour} {
		var s streak
		for _, b := range []float64{0, 3, 6, 9} {
			s.beat(at(b), 0, false)
		}
		if !s.stepped(at(10.1), step) || s.settled(at(10.1)) {
			t.Errorf("a step of %v between two beats: settled", step)
		}
		s.beat(at(12), step, false)
		if s.settled(at(12.1)) || s.stepped(at(12.1), step) {
			t.Errorf("a step of %v before a beat: settled, or another step", step)
		}
	}
	var s streak // a restored database shows the others as they were
	for _, b := range []float64{0, 3, 6, 9} {
		s.beat(at(b), 0, false)
	}
	s.beat(at(12), 0, true)
	s.beat(at(15), 0, false)
	if s.settled(at(16)) {
		t.Error("4 s after a restore: settled")
	}
	// No relay's lease runs out in an outage that this one does not count as such.
	if others := beatGap + Interval + TakeoverInterval; others >= LeaseDuration {
		t.Errorf("another relay's last heartbeat may be %v old, and leases last %v", others, LeaseDuration)
	}
}
