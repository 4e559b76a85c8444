package relay

import (
	"errors"
	"fmt"
	"time"
)

// Missed firings that one transaction makes up for, and the bytes of their payloads.
const (
	mostFirings = 1000
	mostBytes   = 16 << 20
)

var (
	errNoNext    = errors.New("Next gave no further time")
	errNoAdvance = errors.New("Next gave a time that is not after the one before")
)

// firings are what a due schedule enqueues, and when it is due next; the zero time if it has ended, and why.
type firings struct {
	at   []time.Time
	next time.Time
	why  error
}

// plan says what becomes of a schedule that was due at the given time. All times are PostgreSQL's; none is a
// client's. A paused one passes its firings over. The error is errNextPanicked, after which nothing is to be done.
func (k *known) plan(due, now time.Time, paused bool) (firings, error) {
	most := min(mostFirings, max(1, mostBytes/(len(k.payload)+1)))
	f, err := within(nextTimeout, func() (f firings) {
		if paused || k.CatchUp == CatchUpOnce {
			if f.next, f.why = k.after(due); f.why == nil && !f.next.After(now) {
				f.next, f.why = k.after(now) // what lies between was missed
			}
			return f
		}
		f.next = due
		for len(f.at) < most && f.why == nil && !f.next.After(now) {
			f.at = append(f.at, f.next)
			f.next, f.why = k.after(f.next)
		}
		return f
	})
	if errors.Is(err, errNextPanicked) {
		return firings{}, err
	}
	if err != nil {
		f = firings{why: err}
	}
	if !paused && len(f.at) == 0 {
		f.at = []time.Time{due}
	}
	return f, nil
}

// after is the first firing after t. It is zero with an error if there is none.
func (k *known) after(t time.Time) (time.Time, error) {
	next := k.Timing.Next(t)
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
