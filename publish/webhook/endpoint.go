package outboxwebhook

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	leastPause = time.Second
	mostPause  = time.Minute
)

// endpoint is the state of a URL.
//
//	healthy --a request is late--> hanging --it is answered--> slow --one is answered in time--> healthy
//	slow    --a request is not answered--> hanging
//
// No call waits for the requests of an endpoint that is slow or hangs. An endpoint that hangs gets
// one request at a time, after a pause that grows.
type endpoint struct {
	slots   chan struct{}
	limiter *rate.Limiter // nil: no limit

	mu      sync.Mutex
	until   time.Time     // no request before
	gone    bool          // until then: it answered 410
	slow    bool          // the last answer was late, or there was none
	hangs   bool          // there was none yet
	trying  bool          // while it hangs: a request is under way
	pause   time.Duration // after the last late one
	lastUse time.Time
}

func (c *Config) newEndpoint() *endpoint {
	e := &endpoint{slots: make(chan struct{}, c.Concurrency), lastUse: time.Now()}
	if c.Rate > 0 {
		limit := rate.Limit(float64(c.Rate) / c.RatePer.Seconds())
		e.limiter = rate.NewLimiter(limit, max(1, min(c.Concurrency, int(limit))))
	}
	return e
}

// enter asks for a request. wait is the time until the next request is allowed; gone is its reason.
// If alone, the endpoint is slow and no call waits for the request.
func (e *endpoint) enter(now time.Time) (wait time.Duration, gone, alone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastUse = now
	switch {
	case now.Before(e.until):
		return e.until.Sub(now), e.gone, false
	case e.hangs && e.trying:
		return max(e.pause, leastPause), false, false
	}
	e.gone, e.trying = false, e.hangs
	return 0, false, e.slow
}

// skip notes that no request follows enter.
func (e *endpoint) skip() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trying = false
}

// late notes that a request has not been answered in time.
func (e *endpoint) late() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.slow {
		e.slow, e.hangs, e.trying = true, true, true // the late one is under way
	}
}

// ended notes the end of a request: whether its answer came at all, and in time.
func (e *endpoint) ended(answered, inTime bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trying = false
	switch now := time.Now(); {
	case answered:
		e.slow, e.hangs, e.pause = e.slow && !inTime, false, 0
	case e.slow && !now.Before(e.until): // else others that began with it have ended as well
		e.hangs = true
		e.pause = min(max(2*e.pause, leastPause), mostPause)
		e.until = now.Add(e.pause)
	}
}

// rest lets no request through for d, or for longer if that was said before.
func (e *endpoint) rest(d time.Duration, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.gone = gone || e.gone && now.Before(e.until)
	if until := now.Add(d); until.After(e.until) {
		e.until = until
	}
}

// resume ends a rest.
func (e *endpoint) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.until, e.gone = time.Time{}, false
}

// waits waits for the endpoint's rate and a slot.
func (e *endpoint) waits(ctx context.Context, deadline time.Time) bool {
	limit, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if e.limiter != nil && e.limiter.Wait(limit) != nil {
		return false
	}
	select {
	case e.slots <- struct{}{}:
		return true
	case <-limit.Done():
		return false
	}
}

// admits takes a slot if there is one now, and the rate allows it.
func (e *endpoint) admits() bool {
	select {
	case e.slots <- struct{}{}:
	default:
		return false
	}
	if e.limiter != nil && !e.limiter.Allow() {
		<-e.slots
		return false
	}
	return true
}
