package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var errFake = errors.New("fake")

// play is a Dispatcher with the types tx and leased, and a time of its own.
type play struct {
	*testing.T
	d         *Dispatcher
	now       Moment
	poll      *Poll    // under way
	promotion *Promote // under way
	runs      []StartClaim
	wait      time.Duration
}

func newPlay(t *testing.T, change func(p *Params)) *play {
	t.Helper()
	p := Params{Types: []Type{{Name: "TX", Kind: "tx", ClaimSize: 1}, {Name: "LEASED", Kind: "leased"}}, Workers: 4,
		PollInterval: time.Second, StatementTimeout: 10 * time.Second}
	if change != nil {
		change(&p)
	}
	g := &play{T: t, d: New(p)}
	g.now = Moment{Time: time.Now(), Postponed: func(time.Time) bool { return false }}
	return g
}

// step makes a step, and returns its actions as text, without Wait.
func (g *play) step(e Event) string {
	g.Helper()
	var out []string
	for _, a := range g.d.Step(e, g.now) {
		switch a := a.(type) {
		case Poll:
			g.poll = &a
			text := "poll"
			if a.Writable {
				text += " writable"
			}
			if a.RequestWakeUp > 0 {
				text += " request"
			}
			if a.Withdraw > 0 {
				text += fmt.Sprint(" withdraw ", a.Withdraw)
			}
			out = append(out, text)
		case Promote:
			g.promotion = &a
			out = append(out, "promote")
		case StartClaim:
			g.runs = append(g.runs, a)
			text := fmt.Sprintf("claim %s %d", g.d.params.Types[a.Lane].Name, a.Claim.Limit)
			if a.Claim.Named {
				text += " named"
			}
			out = append(out, text)
		case Wait:
			g.wait = a.For
		case LogFailures:
			out = append(out, "log "+a.Type)
		case TellFailures:
			out = append(out, fmt.Sprintf("%s fails %t", a.Type, a.Failing != nil))
		default:
			out = append(out, strings.TrimPrefix(fmt.Sprintf("%T", a), "plan."))
		}
	}
	return strings.Join(out, ", ")
}

// polled answers the poll under way: with heads of the lanes that are named.
func (g *play) polled(change func(r *PollResult), lanes ...string) string {
	g.Helper()
	if g.poll == nil {
		g.Fatal("no poll is under way")
	}
	r := PollResult{Heads: make([]*Head, len(g.d.params.Types)), Took: time.Millisecond}
	for i, of := range g.d.params.Types {
		for _, name := range lanes {
			if of.Name == name {
				r.Heads[i] = &Head{Position: Position{TaskID: 1}, Since: g.now.Time}
			}
		}
	}
	if change != nil {
		change(&r)
	}
	p := *g.poll
	g.poll = nil
	return g.step(Polled{Poll: p, Result: r})
}

// promoted answers the promotion under way.
func (g *play) promoted(done int) string {
	g.Helper()
	p := *g.promotion
	g.promotion = nil
	return g.step(Promoted{Promote: p, Done: done})
}

func (g *play) pollFails(f Failure) string {
	g.Helper()
	p := *g.poll
	g.poll = nil
	return g.step(Polled{Poll: p, Failure: f})
}

// ended ends the first run of a Tx claim that took its task.
func (g *play) ended(ordered bool) string {
	g.Helper()
	run := g.runs[0]
	g.runs = g.runs[1:]
	first := g.step(ClaimFound{Lane: run.Lane, Claim: run.Claim, Found: founds(1)})
	then := g.step(&ClaimEnded{Lane: run.Lane, Slots: 1, Claim: run.Claim, Told: true,
		Ran: true, Keyed: ordered, ClaimSize: 1})
	return strings.Trim(first+", "+then, ", ")
}

// claimEnds ends the first claim without a run.
func (g *play) claimEnds(change func(e *ClaimEnded)) string {
	g.Helper()
	run := g.runs[0]
	g.runs = g.runs[1:]
	e := &ClaimEnded{Lane: run.Lane, Slots: 1, Claim: run.Claim, ClaimSize: 1}
	change(e)
	return g.step(e)
}

func (g *play) want(what, got, want string) {
	g.Helper()
	if got != want {
		g.Fatalf("%s: %q, want %q", what, got, want)
	}
}

// later moves the clock, and ticks.
func (g *play) later(d time.Duration) string {
	g.Helper()
	g.now.Time = g.now.Time.Add(d)
	return g.step(Tick{})
}

// idle plays empty polls until the relay relies on wake-ups, and answers the request with 7.
func (g *play) idle() {
	g.Helper()
	g.now.Listening = true
	for n := 0; g.d.wakeups.request == 0; n++ {
		if n > 20 {
			g.Fatal("no wake-up request in 20 polls")
		}
		if g.poll == nil {
			g.later(g.wait)
		}
		g.polled(func(r *PollResult) {
			if g.d.polls.empty >= idleAfter {
				r.WakeRequest = 7
			}
		})
	}
}

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
	if g.now.Time = g.now.Time.Add(time.Second); g.d.wakeups.suppressedUntil.Before(g.now.Time) {
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
		"a poll":         {nil, func(g *play) { g.d.polls.underway = true }, "0 5 TX", false},
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
		if due := !g.d.polls.due.IsZero(); due != ordered || g.poll == nil {
			t.Errorf("ordered %t: the next task is due %t, a poll %t", ordered, due, g.poll != nil)
		}
	}
}

// A claim by due time begins behind the last one. Of a key, the task that is ready now may have been due
// before that: RunOnce is done when a claim in the lane's order is empty, too.
func TestAClaimInTheLanesOrderFollowsAnEmptyOneByDueTime(t *testing.T) {
	t.Parallel()
	g := newPlay(t, func(p *Params) { p.Once, p.Workers = true, 1 })
	starts := &g.d.lanes.all[0].starts
	starts.turns, starts.due, starts.dueSince = dueTurn-1, Due{5, 5}, g.now.Time
	empty := func() string {
		g.Helper()
		run := g.runs[0]
		g.want("it found nothing", g.step(ClaimFound{Lane: run.Lane, Claim: run.Claim}), "")
		return g.claimEnds(func(e *ClaimEnded) { e.Told = true })
	}
	g.want("the start", g.step(Tick{}), "poll")
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("there is a task", g.polled(nil, "TX"), "claim TX 1")
	if g.runs[0].Claim.Start.Due == nil {
		t.Fatal("the claim is not by due time")
	}
	g.want("an empty claim by due time", empty(), "claim TX 1")
	if g.runs[0].Claim.Start.Due != nil {
		t.Error("the next claim is by due time, too")
	}
	g.want("an empty claim in the lane's order", empty(), "Done")
}

func TestScheduledTasksEndThePause(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	g.polled(func(r *PollResult) { r.Due, r.NextDue = true, 40*time.Millisecond })
	g.d.polls.empty = 20
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
	g.d.polls.empty = 20
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
