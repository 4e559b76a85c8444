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
	return strings.Trim(first+", "+g.step(ClaimEnded{Lane: run.Lane, Slots: 1, Claim: run.Claim, Told: true, Ran: true, Ordered: ordered, ClaimSize: 1}), ", ")
}

// claimEnds ends the first claim without a run.
func (g *play) claimEnds(change func(e *ClaimEnded)) string {
	g.Helper()
	run := g.runs[0]
	g.runs = g.runs[1:]
	e := ClaimEnded{Lane: run.Lane, Slots: 1, Claim: run.Claim, ClaimSize: 1}
	change(&e)
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
	for n := 0; g.d.wakeRequest == 0; n++ {
		if n > 20 {
			g.Fatal("no wake-up request in 20 polls")
		}
		if g.poll == nil {
			g.later(g.wait)
		}
		g.polled(func(r *PollResult) {
			if g.d.emptyPolls >= idleAfter {
				r.WakeRequest = 7
			}
		})
	}
}
