package forward

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	leastPause = time.Second
	mostPause  = time.Minute
	// patience is how long a call waits for the circuit, so that an outage does not make the relay
	// put off its backlog at full speed.
	patience = 2 * time.Second
)

// circuit keeps events from a broker that is unavailable. It is closed while all is well. A failure
// opens it for a time; then one call tries, and closes it or opens it for longer.
type circuit struct {
	mu      sync.Mutex
	until   time.Time     // zero: it is closed
	pause   time.Duration // of the last failure
	trying  bool
	changed chan struct{} // closed by a success
}

// enter waits, for a little, until a call may go to the broker. Else wait is when to come back.
// After true the caller calls succeeded or failed, or else left.
func (c *circuit) enter(ctx context.Context) (wait time.Duration, ok bool) {
	deadline := time.Now().Add(patience)
	for {
		c.mu.Lock()
		now := time.Now()
		open := c.until.Sub(now)
		if c.until.IsZero() || open <= 0 && !c.trying {
			c.trying = !c.until.IsZero()
			c.mu.Unlock()
			return 0, true
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		left := deadline.Sub(now)
		if left <= 0 || ctx.Err() != nil {
			return max(open, leastPause) + rand.N(leastPause), false
		}
		if open > 0 {
			left = min(left, open)
		}
		select {
		case <-changed:
		case <-time.After(left):
		case <-ctx.Done():
		}
	}
}

// succeeded closes the circuit.
func (c *circuit) succeeded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until, c.pause, c.trying = time.Time{}, 0, false
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// failed opens the circuit, for the given time if there is one, and returns for how long.
func (c *circuit) failed(after time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if open := c.until.Sub(now); open > 0 && after == 0 { // by a call that began with this one
		return open
	}
	c.pause = min(max(2*c.pause, leastPause), mostPause)
	if after == 0 {
		after = c.pause
	}
	c.until, c.trying = now.Add(after), false
	return after
}

// left lets another call try, after one that has ended without a result.
func (c *circuit) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trying = false
}

// open is for how long the circuit stays open; 0: it is closed.
func (c *circuit) open() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until.IsZero() {
		return 0
	}
	return max(time.Until(c.until), time.Nanosecond)
}
