package plan

import (
	"errors"
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
		g.step(&ClaimEnded{Lane: 1, Claim: run.Claim, Slots: 3, Allowed: 3})
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
		"no slot": {func(e *ClaimEnded) { e.NotMade = NoSlot }, slotWaitLeast / 2, slotWaitLeast},
		"no token": {func(e *ClaimEnded) { e.NotMade, e.Wait = NoToken, 300*time.Millisecond },
			300 * time.Millisecond, 300 * time.Millisecond},
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
		g.step(&ClaimEnded{Lane: 0, Slots: 1, Claim: run.Claim, Told: true, ClaimSize: 1})
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
	g.step(&ClaimEnded{Lane: 1, Claim: run.Claim, Slots: 3, Told: true, Found: founds(1, 2), Allowed: 3})
	stuck := ResultStuck{Lane: 1, Failure: Failure{Err: errFake, Refused: true}, Began: g.now.Time, First: true}
	g.want("refused", strings.TrimSuffix(g.step(stuck), ", poll"), "log LEASED, LEASED fails true")
	g.want("it ends", strings.TrimSuffix(g.step(LeasesEnded{Lanes: []LaneEnds{{1, 1, 1}}}), ", poll"), "LEASED fails false")
}

// A lane that fails a quarter of the time or more is named between its failures, also where several of
// them follow each other. One that fails for long and then works is not.
func TestALaneThatFailsNowAndAgainIsNamed(t *testing.T) {
	t.Parallel()
	for claims, want := range map[string]bool{
		strings.Repeat("fail ok ", 30):               true,
		strings.Repeat("fail fail fail ok ", 15):     true,
		strings.Repeat("fail fail fail fail ok ", 5): true,
		strings.Repeat("fail ok ok ok ok ok ", 15):   false,
		"ok " + strings.Repeat("fail ", 50) + "ok ":  false,
	} {
		var f Failing
		now := time.Now()
		for claim := range strings.FieldsSeq(claims) {
			if now = now.Add(time.Second); claim == "ok" {
				f.succeeded()
			} else {
				f.note(Failure{Err: errors.New("too slow")}, now, now)
			}
		}
		if f.fails() != want {
			t.Errorf("after %.60s…: named %v, want %v (share %.2f)", claims, f.fails(), want, f.share)
		}
	}
}

func TestAnOutageBeginsOnceAndEndsWithWorkThatBeganAfterIt(t *testing.T) {
	t.Parallel()
	var o Outage
	at := time.Now()
	if !o.Fail(at, at, Failure{}) || o.Fail(at, at, Failure{}) || !o.Active() {
		t.Error("of two failures the first does not begin an outage, or the second does")
	}
	for n := range 5 {
		wait := min(tryLeast<<n, tryMost)
		if got := o.Wait(at); got < wait/2 || got > wait {
			t.Errorf("failure %d: the pause is %v, want %v to %v", n+1, got, wait/2, wait)
		}
		at = at.Add(o.Wait(at))
		o.Fail(at, at, Failure{})
	}
	if _, ends := o.OK(o.since.Add(-1), at); ends {
		t.Error("work that began before the outage ends it")
	}
	if lasted, ends := o.OK(at, at.Add(time.Second)); !ends || lasted != at.Add(time.Second).Sub(o.since) || o.Active() {
		t.Errorf("it ends: %v, after %v", ends, lasted)
	}
	if o.Fail(at, at.Add(2*time.Second), Failure{}) || !o.Covers(at) || o.Covers(at.Add(2*time.Second)) {
		t.Error("work that began before the end begins another outage")
	}
}

// A wake-up ends the pause of the dispatcher, but not at once.
func TestASignEndsThePauseOfTheDispatcher(t *testing.T) {
	t.Parallel()
	began := time.Now()
	var o Outage
	o.Fail(began, began, Failure{})
	o.until = began.Add(time.Hour)
	o.Hasten(began)
	if d := o.until.Sub(began); d < tryLeast || d > 2*tryLeast {
		t.Errorf("the pause ends after %v", d)
	}
	before := o.until
	if o.Hasten(began.Add(time.Minute)); o.until != before {
		t.Errorf("a later sign moved the end of the pause by %v", o.until.Sub(before))
	}
}

// What no waiting mends is told again and again, as its reason may be another; so is the change
// from one kind to the other.
func TestAnOutageTellsWhichKindItIs(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	refused := Failure{Err: errFake, Refused: true, Answered: true, Lasting: true}
	away, busy := Failure{Err: errFake}, Failure{Err: errFake, Busy: true}
	for i, c := range []struct {
		f    Failure
		want string
	}{{away, "OutageBegan"}, {away, ""}, {refused, "OutageBegan"}, {refused, "OutageBegan"}, {away, "OutageBegan"}, {away, ""},
		{busy, "OutageBegan"}, {busy, ""}, {away, "OutageBegan"}} {
		if got := strings.TrimSuffix(g.pollFails(c.f), ", poll"); got != c.want {
			t.Errorf("failure %d: %q, want %q", i, got, c.want)
		}
		for g.poll == nil {
			g.later(g.wait)
		}
	}
	g.want("it works", strings.TrimSuffix(g.polled(nil), ", poll"), "TellAnswer, OutageEnded")

	// The end of a connection makes no outage of another kind.
	for _, f := range []Failure{busy, refused} {
		g = newPlay(t, nil)
		g.step(Tick{})
		g.want("it begins", g.pollFails(f), "OutageBegan")
		g.want("after a pause", g.later(g.wait), "poll writable")
		for range passing {
			g.want("a connection ends", g.pollFails(Failure{Err: errFake, Passing: true}), "DiscardConns, poll writable")
		}
		again := g.pollFails(f)
		if f.Lasting && again != "OutageBegan" || f.Busy && again != "" {
			t.Errorf("it goes on: %q", again)
		}
		g.want("after a pause", g.later(g.wait), "poll writable")
		for range passing {
			g.want("a connection ends", g.pollFails(Failure{Err: errFake, Passing: true}), "DiscardConns, poll writable")
		}
		g.want("and again", g.pollFails(Failure{Err: errFake, Passing: true}), "OutageBegan")
	}

	// A heartbeat that PostgreSQL refuses makes the outage of its kind, though polls succeed.
	g = newPlay(t, nil)
	g.now.NoHeartbeat = Failure{Err: errFake}
	g.want("the start", g.step(Tick{}), "poll, OutageBegan")
	g.now.NoHeartbeat = refused
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("refused", g.polled(nil), "TellAnswer, OutageBegan, OutageBegan")
}
