package doctor

import "time"

// Thresholds makes what is found in large databases be found in small ones.
func Thresholds(deadRows, indexBytes int64, waited time.Duration) Option {
	return func(s *settings) { s.dead, s.bloated, s.waited = deadRows, indexBytes, waited }
}

// Names are those of all checks.
func Names() (out []string) {
	for _, c := range checks {
		for _, p := range c.passed {
			out = append(out, p.name)
		}
	}
	return out
}
