package plan

import (
	"strings"
	"testing"
	"time"
)

func TestAPollThatFailsIsRepeatedUntilItIsAnOutage(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	for range passing {
		g.want("a connection ends", g.pollFails(Failure{Err: errFake, Passing: true}), "DiscardConns, poll")
	}
	g.want("and again", g.pollFails(Failure{Err: errFake, Passing: true}), "OutageBegan")
	g.want("after a pause", g.later(g.wait), "poll writable")
	g.want("it fails", g.pollFails(Failure{Err: errFake}), "")
	g.want("after a pause", g.later(g.wait), "poll writable")
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("the end", g.polled(nil, "TX"), "TellAnswer, OutageEnded, claim TX 1")
}

// Failures of a type are its own matter, unless a poll fails as well.
func TestATypeThatFailsRestsAndIsNamed(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	g.want("the first", g.polled(nil, "TX"), "claim TX 1")
	fail := func() string { return g.claimEnds(func(e *ClaimEnded) { e.Failure = Failure{Err: errFake} }) }
	g.want("it fails", fail(), "TX fails false, poll writable")
	for n := range 2 {
		g.now.Time = g.now.Time.Add(time.Millisecond)
		g.want("it rests", g.polled(nil, "TX", "LEASED"), "claim LEASED 3")
		g.now.Time = g.now.Time.Add(restLeast << n)
		run := g.runs[0]
		g.runs = nil
		g.step(ClaimEnded{Lane: 1, Claim: run.Claim, Slots: 3, Allowed: 3})
		if g.poll != nil && len(g.runs) == 0 {
			g.polled(nil, "TX")
		}
		if len(g.runs) != 1 {
			t.Fatalf("after the rest: claims %+v, want one", g.runs)
		}
		got := fail()
		g.want("it fails again", strings.TrimSuffix(got, ", poll writable"),
			[]string{"TX fails false", "log TX, TX fails true"}[n])
	}
}

func TestFewConnectionsWithholdSlotsForAWhile(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	full := Failure{Err: errFake, NoConnection: true}
	g.step(Tick{})
	g.want("no connection", g.pollFails(full)+g.later(duePause), "FewConnspoll")
	g.want("and none again", g.pollFails(full)+g.later(duePause), "poll")
	g.want("and none again", g.pollFails(full)+g.later(duePause), "poll")
	if g.d.free != 0 || g.d.conns.withheld != 3 {
		t.Errorf("%d slots are withheld, want all but one", g.d.conns.withheld)
	}
	g.want("the last slot is not withheld", g.pollFails(full), "OutageBegan")
	for range 3 {
		g.later(retryFor)
	}
	if g.d.conns.withheld != 0 {
		t.Errorf("%d slots are withheld for ever", g.d.conns.withheld)
	}
	g.later(retryFor)
	g.want("all work", g.polled(nil), "TellAnswer, OutageEnded")
	g.later(g.wait)
	g.want("still", g.polled(nil), "EnoughConns")
}

func TestAClaimThatIsNotMadeIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end         func(e *ClaimEnded)
		least, most time.Duration
	}{
		"no slot":      {func(e *ClaimEnded) { e.NotMade = NoSlot }, slotWaitLeast / 2, slotWaitLeast},
		"no token":     {func(e *ClaimEnded) { e.NotMade, e.Wait = NoToken, 300*time.Millisecond }, 300 * time.Millisecond, 300 * time.Millisecond},
		"set aside":    {func(e *ClaimEnded) { e.NotMade = SetAside }, 0, 0},
		"group failed": {func(e *ClaimEnded) { e.Failure = Failure{Err: errFake, Divisible: true} }, 0, 0},
	} {
		g := newPlay(t, func(p *Params) { p.Types[0].ClaimSize = 8 })
		g.step(Tick{})
		g.want(name, g.polled(nil, "TX"), "claim TX 8")
		c.end = func(end func(e *ClaimEnded)) func(e *ClaimEnded) {
			return func(e *ClaimEnded) { end(e); e.ClaimSize = 8 }
		}(c.end)
		g.claimEnds(c.end)
		waited := time.Duration(0)
		for len(g.runs) == 0 && waited < time.Second {
			if g.poll != nil {
				g.polled(nil, "TX")
				continue
			}
			waited += time.Millisecond
			g.later(time.Millisecond)
		}
		if waited < c.least || waited > c.most+time.Millisecond {
			t.Errorf("%s: the next claim comes after %v, want %v to %v", name, waited, c.least, c.most)
		}
		if want := map[bool]int{true: 4, false: 8}[name == "group failed"]; g.runs[0].Claim.Limit != want {
			t.Errorf("%s: the next claim takes %d, want %d", name, g.runs[0].Claim.Limit, want)
		}
	}
}

func TestRunOnceEndsWhenNothingIsLeft(t *testing.T) {
	t.Parallel()
	once := func(p *Params) { p.Once = true }
	empty := func(g *play) (done string) {
		for range 20 {
			if g.poll == nil {
				done = g.later(g.wait)
			} else {
				done = g.polled(nil)
			}
			if done == "Done" {
				break
			}
		}
		return done
	}
	g := newPlay(t, once)
	g.step(Tick{})
	g.want("a task", g.polled(nil, "TX"), "claim TX 1")
	g.ended(false)
	for _, run := range g.runs { // a full claim begins two more
		g.step(ClaimFound{Lane: 0, Claim: run.Claim})
		g.step(ClaimEnded{Lane: 0, Slots: 1, Claim: run.Claim, Told: true, ClaimSize: 1})
	}
	g.want("the end", empty(g), "Done")

	g = newPlay(t, once)
	g.step(Tick{})
	if got := g.polled(func(r *PollResult) { r.Stranded = true }); got != "" {
		t.Errorf("beside leases of dead relays: %s, want none", got)
	}
	g.later(g.wait)
	g.want("a failure", g.pollFails(Failure{Err: errFake}), "Done")
	if g.d.failed != errFake {
		t.Errorf("it ends with %v", g.d.failed)
	}

	g = newPlay(t, once)
	g.now.NoHeartbeat = Failure{Err: errFake}
	g.want("no heartbeat", g.step(Tick{}), "Done")
}

func TestADispatcherStopsWhenAllThatRunsHasEnded(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	g.polled(nil, "TX")
	g.now.Stopping = true
	g.want("stopping", g.later(time.Second), "")
	g.want("the end", g.ended(true), "Done")
}

func TestWithoutAHeartbeatNothingIsClaimed(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.now.NoHeartbeat = Failure{Err: errFake}
	g.want("the start", g.step(Tick{}), "poll, OutageBegan")
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("a head", g.polled(nil, "TX"), "TellAnswer")
	g.now.NoHeartbeat = Failure{}
	g.want("a heartbeat", g.later(time.Millisecond), "poll writable")
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("all is well", g.polled(nil, "TX"), "TellAnswer, OutageEnded, claim TX 1")
}

func TestAResultThatIsRefusedAgainAndAgainIsNamedUntilItEnds(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	g.want("a lease", g.polled(nil, "LEASED"), "claim LEASED 3")
	run := g.runs[0]
	g.step(ClaimFound{Lane: 1, Claim: run.Claim, Found: founds(1, 2)})
	g.step(ClaimEnded{Lane: 1, Claim: run.Claim, Slots: 3, Told: true, Found: founds(1, 2), Allowed: 3})
	stuck := ResultStuck{Lane: 1, Failure: Failure{Err: errFake, Refused: true}, Began: g.now.Time, First: true}
	g.want("refused", strings.TrimSuffix(g.step(stuck), ", poll"), "log LEASED, LEASED fails true")
	g.want("it ends", strings.TrimSuffix(g.step(LeasesEnded{Lanes: []LaneEnds{{1, 1, 1}}}), ", poll"), "LEASED fails false")
}
