package forward

import (
	"fmt"
	"net/url"
	"strings"
	"time"
)

const (
	leastPause = time.Second
	mostPause  = time.Minute
	// mostAfter bounds the pause that a publisher asks for.
	mostAfter = time.Hour
	// gap is between the times at which postponed events come back, and mostGaps bounds their sum. So
	// a backlog for one target does not keep the relay from the events of others.
	gap      = time.Millisecond
	mostGaps = 5 * time.Minute
)

// broker is the name of the circuit of the whole broker. No target has it.
const broker = ""

// circuit is open: it keeps events from a broker, or from one target, that takes none. After its
// pause one call is the trial, which closes the circuit or opens it for longer.
type circuit struct {
	since time.Time     // when it opened
	until time.Time     // no trial begins before
	pause time.Duration // of the last failure
	trial time.Time     // the end of the running trial; zero without one
	back  time.Time     // when the last postponed event comes back
	err   error         // of the last failure

	logged bool          // when it opened
	closed chan struct{} // closed when the circuit is
}

// try begins a trial within the limit, or returns the time to wait.
func (c *circuit) try(now time.Time, limit time.Duration) (wait time.Duration, ok bool) {
	if !c.trial.IsZero() && !now.Before(c.trial) { // Publish does not return
		c.fail(c.trial, 0)
	}
	next := c.until
	if !c.trial.IsZero() {
		next = now.Add(leastPause)
	}
	if now.Before(next) {
		if c.back = c.back.Add(gap); c.back.Before(next) {
			c.back = next
		}
		if last := next.Add(mostGaps); c.back.After(last) {
			c.back = last
		}
		return c.back.Sub(now), false
	}
	c.trial = now.Add(limit)
	return 0, true
}

// fail opens the circuit for the given time, or if that is 0 for twice the last pause.
func (c *circuit) fail(now time.Time, after time.Duration) {
	c.pause = min(max(2*c.pause, leastPause), mostPause)
	if after == 0 {
		after = c.pause
	}
	c.until, c.trial = now.Add(min(after, mostAfter)), time.Time{}
}

// shown is the name of a target in logs and Health. Of a URL, which may be secret, it is the host.
func shown(target string) string {
	if target == broker {
		return "the broker"
	}
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil {
			return "a URL that is not valid"
		}
		target = u.Scheme + "://" + u.Host
	}
	return fmt.Sprintf("%.100s", target)
}
