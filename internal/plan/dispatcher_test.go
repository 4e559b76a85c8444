package plan

import (
	"strings"
	"testing"
	"time"
)

func TestAnIdleRelayPollsLessAndLess(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.want("the start", g.step(Tick{}), "poll")
	var waits []time.Duration
	for range 20 {
		g.polled(nil)
		waits = append(waits, g.wait)
		g.now.Time = g.now.Time.Add(g.wait)
		g.want("the next", g.step(Tick{}), "poll")
	}
	for i, wait := range waits {
		want := emptyPause
		if i >= idleAfter {
			want = min(emptyPause<<(i+1-idleAfter), time.Second)
		}
		if wait > want || wait < want-want/30 {
			t.Errorf("pause %d is %v, want %v", i+1, wait, want)
		}
	}
}

func TestAWakeUpEndsThePauseAndTheRequest(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.idle()
	g.want("a pause", g.step(Tick{}), "")
	g.now.Time = g.now.Time.Add(time.Second / 100)
	g.want("a wake-up", g.step(Woken{}), "poll withdraw 7")
	g.want("it found work", g.polled(nil, "TX"), "claim TX 1")

	g = newPlay(t, nil)
	g.idle()
	g.now.Time = g.now.Time.Add(time.Second / 100)
	g.want("a wake-up that names a task", g.step(Woken{"0 5 TX"}), "claim TX 1 named")
	g.want("the poll follows", g.later(pollAgain), "poll withdraw 7")

	g = newPlay(t, nil)
	g.idle()
	g.want("another relay withdrew the request", g.step(Withdrawn{})+g.later(pollPause), "poll request")

	g = newPlay(t, nil)
	g.idle()
	for range burstSize + 1 {
		g.now.Time = g.now.Time.Add(pollPause)
		g.step(Woken{"0 5 TX"})
		if g.poll != nil {
			g.polled(nil)
		}
	}
	if g.now.Time = g.now.Time.Add(time.Second); g.d.suppressedUntil.Before(g.now.Time) {
		t.Error("fast wake-ups are not suppressed")
	}
}

// A wake-up claims its task at once only where that can do no harm.
func TestATaskThatAWakeUpNamesIsClaimedByAnIdleRelayOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		params func(*Params)
		change func(g *play)
		text   string
		want   bool
	}{
		"idle":           {nil, nil, "0 5 TX", true},
		"no name":        {nil, nil, "", false},
		"another type":   {nil, nil, "0 5 OTHER", false},
		"RunOnce":        {func(p *Params) { p.Once = true }, nil, "0 5 TX", false},
		"bounds":         {func(p *Params) { p.Bound = func(int, []Load) map[string]int { return nil } }, nil, "0 5 TX", false},
		"one worker":     {func(p *Params) { p.Workers = 1 }, nil, "0 5 TX", false},
		"stopping":       {nil, func(g *play) { g.now.Stopping = true }, "0 5 TX", false},
		"no heartbeat":   {nil, func(g *play) { g.now.NoHeartbeat = Failure{Err: errFake} }, "0 5 TX", false},
		"a poll":         {nil, func(g *play) { g.d.polling = true }, "0 5 TX", false},
		"a claim":        {nil, func(g *play) { g.d.claims = 1 }, "0 5 TX", false},
		"the lane rests": {nil, func(g *play) { g.d.lanes.all[0].failing.until = g.now.Time.Add(time.Hour) }, "0 5 TX", false},
		"an outage":      {nil, func(g *play) { g.d.outage.Fail(g.now.Time, g.now.Time, Failure{}) }, "0 5 TX", false},
	} {
		g := newPlay(t, c.params)
		g.step(Tick{})
		g.polled(nil)
		if c.change != nil {
			c.change(g)
		}
		if got := strings.Contains(g.step(Woken{c.text}), "named"); got != c.want {
			t.Errorf("%s: claimed %t, want %t", name, got, c.want)
		}
	}
}

// The task that follows in an ordering key becomes ready with a poll.
func TestAfterATaskWithAnOrderingKeyAPollFollows(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		g := newPlay(t, nil)
		g.step(Tick{})
		g.polled(nil, "TX")
		g.now.Time = g.now.Time.Add(time.Second)
		g.ended(ordered)
		if due := !g.d.nextDue.IsZero(); due != ordered || g.poll == nil {
			t.Errorf("ordered %t: the next task is due %t, a poll %t", ordered, due, g.poll != nil)
		}
	}
}

func TestScheduledTasksEndThePause(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	g.polled(func(r *PollResult) { r.Due, r.NextDue = true, 40*time.Millisecond })
	g.d.emptyPolls = 20
	g.want("the task is due", g.later(g.wait), "poll")
	g.polled(func(r *PollResult) { r.Due, r.NextDue = true, 40*time.Millisecond })
	g.step(Scheduled{At: g.now.Time.Add(3 * time.Millisecond)})
	if g.wait > 3*time.Millisecond {
		t.Errorf("it waits for %v, want 3ms", g.wait)
	}
	g.step(Scheduled{At: g.now.Time.Add(time.Hour)})
	if g.wait > 3*time.Millisecond {
		t.Errorf("a later task moves the timer to %v", g.wait)
	}
}

// An app's bounds may hold all types back for a while. They are asked for again, but not all the time.
func TestBoundsThatHoldATypeBackAreAskedForAgain(t *testing.T) {
	t.Parallel()
	asked, bounds := 0, map[string]int{"TX": 0, "OTHER": 7}
	g := newPlay(t, func(p *Params) {
		p.Bound = func(int, []Load) map[string]int {
			asked++
			return bounds
		}
	})
	g.step(Tick{})
	g.want("no lane", g.polled(nil, "TX"), "")
	g.d.emptyPolls = 20
	before := asked
	for range 10 { // half a second
		g.want("after a while", g.later(pollFresh), "poll")
		g.want("still no lane", strings.TrimPrefix(g.polled(nil, "TX"), "ReleaseConns"), "")
	}
	if n := asked - before; n < 10 || n > 20 {
		t.Errorf("it was asked %d times in half a second", n)
	}
	bounds = nil
	g.want("it is not held back any more", g.later(pollFresh), "claim TX 1")
}
