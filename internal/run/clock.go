package run

import (
	"sync"
	"time"
)

// clock is one timer for many ends: it rings at the first of them.
type clock struct {
	ring func(now time.Time) (next time.Time) // says what is the first end then; zero is none

	mu      sync.Mutex
	first   time.Time // zero: none
	timer   *time.Timer
	stopped bool
}

// at makes the clock ring at the moment, or before.
func (c *clock) at(end time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || !c.first.IsZero() && !end.Before(c.first) {
		return
	}
	c.first = end
	if c.timer == nil {
		c.timer = time.AfterFunc(time.Until(end), c.rings)
	} else {
		c.timer.Reset(time.Until(end))
	}
}

func (c *clock) rings() {
	c.mu.Lock()
	c.first = time.Time{} // an end that is set from here on sets the timer
	c.mu.Unlock()
	if next := c.ring(time.Now()); !next.IsZero() {
		c.at(next)
	}
}

func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
