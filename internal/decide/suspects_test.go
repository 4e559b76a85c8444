package decide

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/txoutbox/outbox/internal/store"
)

func TestSuspectsRunBesideOthersByHowOftenTheyWereLost(t *testing.T) {
	many := func(c store.Isolation, n int) (all []store.Isolation) {
		for range n {
			all = append(all, c)
		}
		return all
	}
	const none, once, group, alone, last = store.NotLost, store.LostOnce, store.Grouped, store.Alone, store.LastAttempt
	for _, c := range []struct {
		name    string
		running []store.Isolation
		may     [5]bool // in the order above
	}{
		{"nothing", nil, [5]bool{true, true, true, true, true}},
		{"lost once", many(once, 1000), [5]bool{true, true, true, true, false}},
		{"seven of a group", many(group, 7), [5]bool{true, true, true, false, false}},
		{"a group", many(group, 8), [5]bool{true, true, false, false, false}},
		{"alone", many(alone, 1), [5]bool{true, true, false, false, false}},
		{"on the last attempt", many(last, 1), [5]bool{true, false, false, false, false}},
	} {
		var s Suspects
		var leave []func()
		for _, i := range c.running {
			out, _ := s.Enter(i)
			leave = append(leave, out)
		}
		for i, may := range c.may {
			out, wait := s.Enter(store.Isolation(i))
			if got := out != nil; got != may || got != (wait == 0) {
				t.Errorf("beside %s: class %d runs: %v, wait %v, want %v", c.name, i, got, wait, may)
			}
			if out != nil {
				out()
				out() // once
			}
			s.waits = none
		}
		for _, out := range leave {
			out()
		}
		if out, _ := s.Enter(last); out == nil {
			t.Errorf("after %s: the last attempt has to wait", c.name)
		}
	}
}

// A group that others join all the time would keep one out that has to run alone.
func TestNoneJoinsAGroupForWhichAnotherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Suspects
		first, _ := s.Enter(store.Grouped)
		_, wait := s.Enter(store.Alone)
		if out, _ := s.Enter(store.Grouped); out != nil {
			t.Error("another one joined the group")
		}
		<-time.After(wait)
		if out, _ := s.Enter(store.Grouped); out != nil {
			t.Error("another one joined the group while its turn may still come")
		}
		first()
		alone, _ := s.Enter(store.Alone)
		if alone == nil {
			t.Fatal("it has to wait, although the group has ended")
		}
		alone()
		if out, _ := s.Enter(store.Grouped); out == nil {
			t.Error("a group has to wait for nothing")
		}
	})
}

// The one that waited may run elsewhere by now.
func TestATurnThatNobodyTakesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Suspects
		first, _ := s.Enter(store.Grouped)
		defer first()
		_, wait := s.Enter(store.Alone)
		<-time.After(wait + 2*time.Second)
		if out, _ := s.Enter(store.Grouped); out == nil {
			t.Error("a group waits for a task that does not come")
		}
	})
}

// Slow Suspects are not claimed and put back all the time.
func TestASuspectWaitsLongerWhereOthersTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Suspects
		s.Enter(store.Alone)
		for _, after := range []time.Duration{0, 2 * time.Second, time.Minute} {
			<-time.After(after)
			_, wait := s.Enter(store.Alone)
			if least := 200*time.Millisecond + min(after, 10*time.Second); wait < least || wait > 13*time.Second {
				t.Errorf("%v after the last change it waits %v, want at least %v", after, wait, least)
			}
		}
	})
}
