package handler

import (
	"math/rand/v2"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox/internal/guard"
)

const maxBackoff = 24 * time.Hour

// Backoff is how long to wait after the given number of attempts failed, and whether the backoff
// says to stop retrying. The wait is between 0 and 24 h. If the app's backoff panics or ends its
// goroutine, err says so, and the wait is that of the default backoff.
func (h *Handler) Backoff(attempts int) (wait time.Duration, stop bool, err error) {
	err = guard.Call(func() { wait, stop = waitAfter(h.NewBackoff(), attempts) })
	if err != nil {
		wait, stop = waitAfter(DefaultBackoff(), attempts)
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

// DefaultBackoff waits a random part of 1 s, 2 s, 4 s … 1 h, but at least a tenth of it, so that a
// retry is never at once.
func DefaultBackoff() retry.Backoff {
	b := retry.WithCappedDuration(time.Hour, retry.NewExponential(time.Second))
	return retry.BackoffFunc(func() (time.Duration, bool) {
		d, stop := b.Next()
		return d/10 + rand.N(d-d/10), stop
	})
}
