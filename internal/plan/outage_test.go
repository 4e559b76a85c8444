package plan

import (
	"strings"
	"testing"
	"time"
)

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

	// A heartbeat that PostgreSQL refuses makes the outage of its kind, though polls succeed.
	g = newPlay(t, nil)
	g.now.NoHeartbeat = Failure{Err: errFake}
	g.want("the start", g.step(Tick{}), "poll, OutageBegan")
	g.now.NoHeartbeat = refused
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("refused", g.polled(nil), "TellAnswer, OutageBegan, OutageBegan")
}
