package schedule

import (
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
)

// Missed firings that one transaction makes up for, and the bytes of their payloads.
const (
	maxFirings = 1000
	maxBytes   = 16 << 20
)

// nextTimeout is how long Next may take for the firings of one transaction.
const nextTimeout = 5 * time.Second

var (
	errNoNext       = errors.New("its Next gave no further time")
	errNoAdvance    = errors.New("its Next gave a time that is not after the one before")
	errNextPanicked = errors.New("its Next panicked")
)

// firings are what a due schedule enqueues, and when it is due next; the zero time if it has ended,
// and why.
type firings struct {
	at   []time.Time
	next time.Time
	why  error
}

// firings computes what a schedule that was due at the given time enqueues now. All times are
// PostgreSQL's; none is a client's. A paused one passes its firings over. The error is
// errNextPanicked, after which nothing is to be done.
func (s *Schedule) firings(due, now time.Time, paused bool) (firings, error) {
	most := min(maxFirings, max(1, maxBytes/(len(s.payload)+1)))
	f, err := ask(func() (f firings) {
		if paused || s.CatchUp != outbox.CatchUpAll {
			if f.next, f.why = s.after(due); f.why == nil && !f.next.After(now) {
				f.next, f.why = s.after(now) // firings in between were missed
			}
			return f
		}
		f.next = due
		for len(f.at) < most && f.why == nil && !f.next.After(now) {
			f.at = append(f.at, f.next)
			f.next, f.why = s.after(f.next)
		}
		return f
	})
	if err == nil && !paused && len(f.at) == 0 {
		f.at = []time.Time{due}
	}
	return f, err
}

// first computes the first firing after t, to register the schedule. The error is errNextPanicked.
func (s *Schedule) first(t time.Time) (firings, error) {
	return ask(func() (f firings) {
		f.next, f.why = s.after(t)
		return f
	})
}

// ask calls f, which calls Next. A Next that does not return ends the schedule.
func ask(f func() firings) (firings, error) {
	answer := make(chan firings, 1)
	switch err := within(func() { answer <- f() }); {
	case errors.Is(err, errNextPanicked):
		return firings{}, err
	case err != nil:
		return firings{why: err}, nil
	}
	return <-answer, nil
}

// after is the first firing after t. It is zero with an error if there is none.
func (s *Schedule) after(t time.Time) (time.Time, error) {
	next := s.Timing.Next(t)
	if next.IsZero() {
		return time.Time{}, errNoNext
	}
	next = next.UTC().Truncate(time.Microsecond)
	switch {
	case !next.After(t):
		return time.Time{}, fmt.Errorf("%w (to the microsecond)", errNoAdvance)
	case next.Year() > 9999:
		return time.Time{}, errNoNext
	}
	return next, nil
}

// within calls f, which calls Next, and returns also when that does not: its goroutine is left
// behind then.
func within(f func()) error {
	done := make(chan error, 1)
	go guard.Do(f, func(broke error) {
		if broke != nil {
			broke = fmt.Errorf("%w: %w", errNextPanicked, broke)
		}
		done <- broke
	})
	select {
	case err := <-done:
		return err
	case <-time.After(nextTimeout):
		return fmt.Errorf("its Next did not return within %v", nextTimeout)
	}
}
