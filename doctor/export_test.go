package doctor

import "time"

// Thresholds makes what is found in large databases be found in small ones.
func Thresholds(deadRows, indexBytes int64, waited time.Duration) Option {
	return func(s *settings) { s.dead, s.bloated, s.waited = deadRows, indexBytes, waited }
}

// At makes it another day.
func At(day time.Time) Option { return func(s *settings) { s.now = func() time.Time { return day } } }

// ServerVersion is what is said of a server on a day.
var ServerVersion = serverVersion

// Expected are the kinds and names of the objects of the schema.
func Expected() map[[2]string]bool {
	out := map[[2]string]bool{}
	for o := range expected() {
		out[[2]string{o.kind, o.name}] = true
	}
	return out
}

// ExpectedColumns are the columns of each table.
var ExpectedColumns = expectedColumns

// Names are those of all checks.
func Names() (out []string) {
	for _, c := range checks {
		for _, p := range c.passed {
			out = append(out, p.name)
		}
	}
	return out
}

// Rules that no small server can break in a test.
var (
	ClockDifference    = clockDifference
	QueueSeverity      = queueSeverity
	WraparoundSeverity = wraparoundSeverity
	Fullness           = fullness
)
