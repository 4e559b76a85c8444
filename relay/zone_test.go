package relay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox/relay"
)

// When clocks change, an expression of robfig/cron with a zone fires twice or never. InZone fires once.
func TestTimesOfDayWhereClocksChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, spec, day, want string }{ // two days from this one on
		{"America/New_York", "30 1 * * *", "2026-11-01", "01:30-04 01:30-05"},
		{"America/New_York", "30 2 * * *", "2026-03-08", "03:00-04 02:30-04"},
		{"America/New_York", "0 9 * * *", "2026-03-08", "09:00-04 09:00-04"},
		{"Europe/Berlin", "0 2 * * *", "2026-10-25", "02:00+02 02:00+01"},
		{"Europe/London", "0 1 * * *", "2026-03-29", "02:00+01 01:00+01"},
		{"Australia/Lord_Howe", "45 1 * * *", "2026-04-05", "01:45+11 01:45+1030"},
		{"Australia/Lord_Howe", "15 2 * * *", "2026-10-04", "02:30+11 02:15+11"},
		{"Africa/Casablanca", "30 2 * * *", "2026-02-15", "02:30+01 02:30+00"},
		{"America/Santiago", "30 23 * * *", "2026-04-04", "23:30-03 23:30-04"},
		{"America/Santiago", "0 0 * * *", "2026-09-06", "01:00-03 00:00-03"},
		{"Asia/Kathmandu", "30 2 * * *", "2026-03-29", "02:30+0545 02:30+0545"},
		{"Pacific/Apia", "30 12 * * *", "2011-12-29", "12:30-10"},
		{"Pacific/Apia", "30 12 * * *", "2011-12-31", "00:00+14 12:30+14 12:30+14"},
		// An hourly one goes on by the clocks.
		{"Europe/Berlin", "0 1-3 * * *", "2026-10-25", "01:00+02 02:00+02 03:00+01 01:00+01 02:00+01 03:00+01"},
		{"Europe/Berlin", "0 1-3 * * *", "2026-03-29", "01:00+01 03:00+02 01:00+02 02:00+02 03:00+02"},
	} {
		zone, err := time.LoadLocation(c.zone)
		must(err)
		day, err := time.Parse(time.DateOnly, c.day)
		must(err)
		plain := relay.Cron(cron.ParseStandard, c.spec)
		day = time.Date(day.Year(), day.Month(), day.Day(), 0, 0, 0, 0, zone)
		var fires []string
		at := relay.InZone(zone, plain).Next(day.Add(-time.Microsecond).UTC())
		for ; at.Before(day.AddDate(0, 0, 2)) && len(fires) < 10; at = relay.InZone(zone, plain).Next(at) {
			fires = append(fires, strings.TrimSuffix(at.In(zone).Format("15:04-0700"), "00"))
		}
		if got := strings.Join(fires, " "); got != c.want {
			t.Errorf("%s in %s on %s: %s, want %s", c.spec, c.zone, c.day, got, c.want)
		}
	}
}

// The next firing after any time before it is the same, as the schedule's row and its checks need it, and
// each day has one.
func TestATimeOfDayInAZoneIsTheSameFromAnyTimeBefore(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"} {
		zone, err := time.LoadLocation(name)
		must(err)
		for _, spec := range []string{"30 1 * * *", "15 2 * * *", "0 0 * * *"} {
			timing, n := relay.InZone(zone, relay.Cron(cron.ParseStandard, spec)), 0
			var next time.Time
			for at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC); at.Year() < 2027; at = at.Add(10 * time.Minute) {
				if !next.After(at) {
					next, n = timing.Next(at), n+1
				}
				if got := timing.Next(at); !got.Equal(next) {
					t.Fatalf("%s in %s: after %v comes %v, and before it was %v", spec, name, at, got, next)
				}
			}
			if n < 364 || n > 366 {
				t.Errorf("%s in %s: %d firings in a year", spec, name, n)
			}
		}
	}
}
