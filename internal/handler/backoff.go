package handler

import (
	"math/rand/v2"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/guard"
)

const maxBackoff = 24 * time.Hour

// Backoff is how long to wait after the given number of attempts failed, and whether the backoff
// says to stop retrying. The wait is between 0 and 24 h, and spread by 10 % to both sides unless
// the handler has NoJitter. If the app's backoff panics or ends its goroutine, err says so, and the
// wait is that of the default backoff.
func (h *Handler) Backoff(attempts int) (wait time.Duration, stop bool, err error) {
	err = guard.Call(func() { wait, stop = waitAfter(h.NewBackoff(), attempts) })
	if err != nil {
		wait, stop = waitAfter(DefaultBackoff(), attempts)
	}
	if !h.NoJitter {
		wait = min(wait-wait/10+rand.N(wait/5+1), maxBackoff)
	}
	return wait, stop, err
}

func waitAfter(b retry.Backoff, attempts int) (wait time.Duration, stop bool) {
	for range max(attempts, 1) {
		if wait, stop = b.Next(); stop {
			return 0, true
		}
	}
	return min(max(wait, 0), maxBackoff), false
}

// DefaultBackoff waits 1 s, 3 s, 9 s and so on, at most 7 h. The 19 waits between 20 attempts are
// three days together.
func DefaultBackoff() retry.Backoff {
	wait := time.Second / 3
	return retry.WithCappedDuration(7*time.Hour, retry.BackoffFunc(func() (time.Duration, bool) {
		wait = min(3*wait, maxBackoff)
		return wait.Round(time.Second), false
	}))
}
