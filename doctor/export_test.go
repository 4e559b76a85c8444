package doctor

import "time"

// Thresholds makes what is found in large databases be found in small ones.
func Thresholds(deadRows, indexBytes int64, waited time.Duration) Option {
	return func(s *settings) { s.dead, s.bloated, s.waited = deadRows, indexBytes, waited }
}

// Aged makes transaction ids of that age be found.
func Aged(xids int64) Option { return func(s *settings) { s.old = xids } }

// At is the time of this process.
func At(now time.Time) Option { return func(s *settings) { s.now = func() time.Time { return now } } }

// Queued makes the queue of notifications be found from that part of it on.
func Queued(part float64) Option { return func(s *settings) { s.queued = part } }

// Names are those of all checks, in their order.
func Names() []string { return namesOf(checks) }
