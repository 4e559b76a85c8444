package forward

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// brokerWait is the time for which a call waits for the broker's circuit. So in an outage the relay
	// does not postpone its backlog at full speed.
	brokerWait = 2 * time.Second
	// mostOpen is the greatest number of open circuits of targets. Events of further targets are sent,
	// and each failure counts as an attempt.
	mostOpen = 1000
	// mostLogged is the number of circuits, open at once, that the log names.
	mostLogged = 20
	// forgetAfter is the time without a trial after which a circuit is dropped.
	forgetAfter = 10 * time.Minute
	// trialGrace is the time of a trial beyond the time limit of Publish.
	trialGrace = 2 * time.Second
)

// circuits are the open ones, by target.
type circuits struct {
	taskType string
	limit    time.Duration // of a trial

	mu   sync.Mutex
	open map[string]*circuit
}

// pass is the permission to send to a target: its trial, if its circuit is open.
type pass struct {
	target string
	trial  time.Time // the end of the trial; zero: the circuit is closed
}

// refusal is the reason why events of a target wait, and the time.
type refusal struct {
	wait   time.Duration
	err    error
	closed <-chan struct{} // closed when the circuit closes
}

// enter lets an event through to a target whose circuit is closed, or begins its trial.
func (s *circuits) enter(target string) (pass, *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.open[target]
	if c == nil {
		return pass{target: target}, nil
	}
	if wait, ok := c.try(time.Now(), s.limit); !ok {
		return pass{}, &refusal{wait, c.err, c.closed}
	}
	return pass{target, c.trial}, nil
}

// enterBroker is enter for the whole broker. It waits for the circuit for brokerWait.
func (s *circuits) enterBroker(ctx context.Context) (pass, *refusal) {
	deadline := time.NewTimer(brokerWait)
	defer deadline.Stop()
	for {
		p, refused := s.enter(broker)
		if refused == nil {
			return p, nil
		}
		next := time.NewTimer(refused.wait)
		select {
		case <-refused.closed:
		case <-next.C:
		case <-ctx.Done():
			next.Stop()
			return p, refused
		case <-deadline.C:
			next.Stop()
			return p, refused
		}
		next.Stop()
	}
}

// succeeded closes the circuit of a target.
func (s *circuits) succeeded(log *slog.Logger, target string) {
	s.mu.Lock()
	c := s.open[target]
	delete(s.open, target)
	s.mu.Unlock()
	if c == nil {
		return
	}
	close(c.closed)
	if c.logged {
		log.Info("outbox: events are published again", "task_type", s.taskType, "target", shown(target),
			"after", time.Since(c.since).Round(time.Millisecond))
	}
}

// failed opens the circuit of a target, for the given time if there is one, and returns for how
// long.
func (s *circuits) failed(log *slog.Logger, target string, err error, after time.Duration) time.Duration {
	wait, opened := s.fail(target, err, after)
	if opened != nil && opened.logged {
		log.Warn("outbox: events are not published for now", "task_type", s.taskType, "target", shown(target),
			"pause", wait, "error", err)
	}
	return wait
}

func (s *circuits) fail(target string, err error, after time.Duration) (wait time.Duration, opened *circuit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	c := s.open[target]
	switch {
	case c == nil && len(s.open) >= mostOpen && target != broker:
		if s.forget(now); len(s.open) >= mostOpen {
			return leastPause, nil
		}
		fallthrough
	case c == nil:
		if s.open == nil {
			s.open = map[string]*circuit{}
		}
		c = &circuit{since: now, closed: make(chan struct{}), logged: len(s.open) < mostLogged || target == broker}
		s.open[target], opened = c, c
	case now.Before(c.until) && after == 0: // by a call that began before it opened
		return c.until.Sub(now), nil
	}
	c.err = err
	c.fail(now, after)
	return c.until.Sub(now), opened
}

// endTrial ends a trial without a result: the next call may try.
func (s *circuits) endTrial(p pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.open[p.target]; c != nil && !p.trial.IsZero() && c.trial.Equal(p.trial) {
		c.trial = time.Time{}
	}
}

// forget drops the circuits without a trial for forgetAfter.
func (s *circuits) forget(now time.Time) {
	maps.DeleteFunc(s.open, func(_ string, c *circuit) bool {
		return now.Sub(c.until) > forgetAfter && now.Sub(c.trial) > forgetAfter
	})
}

// openCircuit is a circuit as Health and Stats read it.
type openCircuit struct {
	target string
	circuit
}

// all are the open circuits, by their targets: the broker's first.
func (s *circuits) all() []openCircuit {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	out := make([]openCircuit, 0, len(s.open))
	for _, target := range slices.Sorted(maps.Keys(s.open)) {
		out = append(out, openCircuit{target, *s.open[target]})
	}
	return out
}

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
