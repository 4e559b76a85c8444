package plan

import (
	"errors"
	"testing"
	"time"
)

// promotable says that there are requests from one on, and due tasks of the types.
func promotable(request int64, types ...string) func(*PollResult) {
	return func(r *PollResult) { r.Request, r.LastRequest, r.DueTypes = request, request, types }
}

func TestClaimsGoOnBesideAPromotion(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*PollResult){
		"heads of ordering keys": promotable(1), "due tasks": promotable(0, "LEASED"),
	} {
		g := newPlay(t, func(p *Params) { p.Workers = 3 })
		g.want(name, g.step(Tick{})+g.polled(change, "TX"), "pollpromote, claim TX 1")
		for range 100 {
			g.now.Time = g.now.Time.Add(pollFresh + 1)
			if g.ended(false); g.poll != nil {
				g.polled(change, "TX")
			}
			if len(g.runs) == 0 {
				t.Fatalf("%s: no claim beside the promotion", name)
			}
		}
		if g.promotion == nil || g.promotion.Began.After(g.now.Time.Add(-100*pollFresh)) {
			t.Errorf("%s: another promotion began beside the first", name)
		}
		g.promoted(7)
		for g.poll == nil {
			g.ended(false)
		}
		g.want(name+", the rest", g.polled(change), "promote")
	}
}

// With one worker a backlog of either kind does not stop the other, however long a promotion takes.
func TestTheLastSlotIsSharedByClaimsAndPromotions(t *testing.T) {
	t.Parallel()
	g := newPlay(t, func(p *Params) { p.Workers = 1 })
	g.step(Tick{})
	var claiming, promoting time.Duration
	const claim, task = 10 * time.Millisecond, 2 * time.Millisecond
	for began := g.now.Time; g.now.Time.Sub(began) < time.Minute; {
		switch {
		case g.poll != nil:
			g.now.Time = g.now.Time.Add(time.Millisecond)
			g.polled(promotable(1), "TX")
		case g.promotion != nil:
			took := time.Duration(g.promotion.Limit) * task
			promoting += took
			g.now.Time = g.now.Time.Add(took)
			g.promoted(1)
		case len(g.runs) > 0:
			claiming += claim
			g.now.Time = g.now.Time.Add(claim)
			g.ended(false)
		default:
			g.later(g.wait)
		}
	}
	if claiming < 25*time.Second || promoting < 25*time.Second {
		t.Errorf("of a minute %v went to claims and %v to promotions, want 25 s to each", claiming, promoting)
	}
}

// A promotion that takes long is followed by a smaller one, and a quick one by a larger one.
func TestThePortionOfAPromotionFollowsItsTime(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	limits := func(task time.Duration) (last int) {
		for range 20 {
			for g.promotion == nil {
				if g.later(g.wait); g.poll != nil {
					g.polled(promotable(1))
				}
			}
			last = g.promotion.Limit
			g.now.Time = g.now.Time.Add(time.Duration(last) * task)
			g.promoted(1)
		}
		return last
	}
	for _, c := range []struct {
		task        time.Duration
		least, most int
	}{{time.Microsecond, promoteMost, promoteMost}, {time.Millisecond, 25, 100}, {time.Second, promoteLeast, promoteLeast},
		{time.Microsecond, promoteMost, promoteMost}} {
		if n := limits(c.task); n < c.least || n > c.most {
			t.Errorf("with %v a task a promotion is of %d, want %d to %d", c.task, n, c.least, c.most)
		}
	}
}

// A poll that began before the end of a promotion tells of what that did. To promote that again
// would do nothing, and pause.
func TestWhatAPromotionDidIsNotPromotedAgain(t *testing.T) {
	t.Parallel()
	g := newPlay(t, func(p *Params) { p.Once = true })
	g.step(Tick{})
	g.want("a request", g.polled(promotable(1)), "promote")
	g.now.Time = g.now.Time.Add(time.Second)
	g.want("a poll beside it", g.step(Tick{}), "poll")
	g.now.Time = g.now.Time.Add(time.Millisecond)
	g.want("it ends", g.promoted(1), "")
	g.want("the poll ends", g.polled(promotable(1)), "poll")
	g.want("the next request", g.polled(promotable(2)), "promote")
	g.want("it ends", g.promoted(1), "poll")
}

func TestAPromotionThatDoesNothingPauses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*PollResult){
		"another relay promotes heads": promotable(1), "due tasks are locked": promotable(0, "TX"),
	} {
		g := newPlay(t, nil)
		g.step(Tick{})
		g.want(name, g.polled(change), "promote")
		g.promoted(0)
		for n, began := 0, g.now.Time; g.promotion == nil; n++ {
			if n > 10 {
				t.Fatalf("%s: no promotion within 10 polls", name)
			}
			if g.later(g.wait); g.poll != nil {
				g.polled(change)
			}
			if g.promotion != nil && g.now.Time.Sub(began) < promotePause {
				t.Errorf("%s: the next promotion began after %v, want %v", name, g.now.Time.Sub(began), promotePause)
			}
		}
	}
}

// Polls look for requests from the mark on, which follows them by watermarkLag. Full polls look for
// all.
func TestTheMarkOfRequestsFollowsThem(t *testing.T) {
	t.Parallel()
	now, m := time.Unix(1e9, 0), requestMark{}
	for _, c := range []struct {
		after      time.Duration
		note, want int64
	}{
		{watermarkLag, 5, 0}, {0, 9, 0}, {watermarkLag, 9, 5}, {watermarkLag, 9, 9},
		{0, 3, 3}, // committed late, as a full poll saw
		{watermarkLag, 20, 3}, {watermarkLag, 21, 20},
	} {
		now = now.Add(c.after)
		if m.note(c.note, now); m.at != c.want {
			t.Errorf("after %v with request %d the mark is %d, want %d", c.after, c.note, m.at, c.want)
		}
	}
	g := newPlay(t, nil)
	g.step(Tick{})
	var from []int64
	for len(from) < 200 {
		if g.poll == nil {
			g.later(g.wait)
			continue
		}
		if from = append(from, g.poll.FromRequest); g.poll.Full && g.poll.FromRequest > 0 {
			t.Errorf("a full poll looks from request %d on", g.poll.FromRequest)
		}
		g.polled(func(r *PollResult) { r.LastRequest = 7 })
	}
	if n := from[len(from)-1]; n != 7 && n != 0 {
		t.Errorf("polls look from request %d on, want 7", n)
	}
}

func TestHeadsThatPostgreSQLRefusesRest(t *testing.T) {
	t.Parallel()
	g := newPlay(t, nil)
	g.step(Tick{})
	began, tries := g.now.Time, 0
	for g.now.Time.Sub(began) < 10*time.Second {
		switch {
		case g.promotion != nil:
			p := *g.promotion
			g.promotion, tries = nil, tries+1
			g.step(Promoted{Promote: p, HeadsRefused: Failure{Err: errors.New("42501"), Refused: true, Answered: true}})
		case g.poll != nil:
			g.polled(promotable(1))
		default:
			g.later(g.wait)
		}
	}
	if most := int(10*time.Second/RestMost) + 1; tries < 2 || tries > most {
		t.Errorf("%d tries within 10 s, want 2 to %d", tries, most)
	}
}
