package handler

import (
	"math/rand/v2"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/guard"
)

const (
	// LeastWait bounds the waits that count no attempt, so that no handler keeps a relay busy with
	// one task.
	LeastWait = 100 * time.Millisecond
	// MaxBackoff is the longest wait after a failed attempt.
	MaxBackoff = 24 * time.Hour
)

// Schedule is how long a task waits after an attempt failed with err, and whether it is tried again.
type Schedule = func(attempt int, err error) (wait time.Duration, again bool)

// Backoff is the handler's Schedule. The wait is between 0 and 24 h, and spread by 10 % to both sides
// unless the handler has NoJitter. If the app's Schedule panics or ends its goroutine, broken says
// so, and the wait is that of the default.
func (h *Handler) Backoff(attempt int, err error) (wait time.Duration, again bool, broken error) {
	broken = guard.Call(func() { wait, again = h.Schedule(attempt, err) })
	if broken != nil {
		wait, again = DefaultSchedule(attempt, nil)
	}
	if !again {
		return 0, false, broken
	}
	wait = min(max(wait, 0), MaxBackoff)
	if !h.NoJitter {
		wait = min(wait-wait/10+rand.N(wait/5+1), MaxBackoff)
	}
	return wait, again, broken
}

// Series is a Schedule whose wait after attempt n is the n-th value of a new backoff.
func Series[B interface {
	Next() (wait time.Duration, stop bool)
}](factory func() B) Schedule {
	return func(attempt int, _ error) (wait time.Duration, again bool) {
		b, stop := factory(), false
		for range attempt {
			if wait, stop = b.Next(); stop {
				return 0, false
			}
		}
		return wait, true
	}
}

// DefaultSchedule waits 1 s, 3 s, 9 s and so on, at most 7 h. The 19 waits between 20 attempts are
// three days together.
var DefaultSchedule = Series(func() retry.Backoff {
	wait := time.Second / 3
	return retry.WithCappedDuration(7*time.Hour, retry.BackoffFunc(func() (time.Duration, bool) {
		wait = min(3*wait, MaxBackoff)
		return wait.Round(time.Second), false
	}))
})
