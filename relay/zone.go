package relay

import (
	"errors"
	"fmt"
	"time"
)

// InZone takes timing as times of day in a zone, and fires at each of them once, also when the
// zone's clocks change. timing is, for example, a Cron without a zone: it gets and returns times of
// day as if they were UTC.
//
// When clocks go back, a time that comes twice fires the first time. When they go forward, a
// skipped time fires as the skipped hour ends. So an hourly timing has a gap of two hours when
// clocks go back: use UTC for intervals.
func InZone(zone *time.Location, timing Timing) Timing { return zoneTiming{zone, timing} }

type zoneTiming struct {
	zone   *time.Location
	timing Timing
}

func (z zoneTiming) String() string { return fmt.Sprintf("%v in %v", z.timing, z.zone) }

func (z zoneTiming) check() error {
	if z.zone == nil {
		return errors.New("InZone: the zone is nil")
	}
	if z.timing == nil {
		return errors.New("InZone: the timing is nil")
	}
	_, err := checkTiming(z.timing)
	return err
}

func (z zoneTiming) Next(t time.Time) time.Time {
	for wall := wallClock(t.In(z.zone)); ; {
		next := z.timing.Next(wall)
		switch {
		case next.IsZero():
			return next
		case !next.After(wall):
			return t // no advance, which ends the schedule
		}
		wall = next.UTC()
		if at := z.first(wall); at.After(t) {
			return at
		}
	}
}

// wallClock is what the clocks say at t, as if it were UTC.
func wallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// first is the first moment at which the zone's clocks show at least the given time.
func (z zoneTiming) first(wall time.Time) time.Time {
	year, month, day := wall.Date()
	t := time.Date(year, month, day, wall.Hour(), wall.Minute(), wall.Second(), wall.Nanosecond(), z.zone)
	begin, end := t.ZoneBounds()
	switch shown := wallClock(t); {
	case shown.After(wall): // the time is skipped
		return begin
	case shown.Before(wall):
		return end
	case begin.IsZero():
		return t
	}
	_, before := begin.Add(-1).Zone()
	if earlier := wall.Add(-time.Duration(before) * time.Second); earlier.Before(begin) {
		return earlier
	}
	return t
}
