package upkeep

import (
	"testing"
	"time"
)

// After an outage of the database each relay waits until the others can have renewed, whoever is
// back first.
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
			s.beat(at(b))
		}
		if got := s.settled(at(c.now)); got != c.want {
			t.Errorf("%s: settled %v, want %v", c.name, got, c.want)
		}
	}
	// No relay's lease runs out in an outage that this one does not count as such.
	if others := beatGap + Interval + TakeoverInterval; others >= LeaseDuration {
		t.Errorf("another relay's last heartbeat may be %v old, and leases last %v", others, LeaseDuration)
	}
}
