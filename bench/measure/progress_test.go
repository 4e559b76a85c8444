package measure

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWindowsAreRatesOfTheTimeSinceTheFirstTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // has a clock of its own, which these sleeps set on: they take no time
		p := NewProgress(1000)
		time.Sleep(time.Hour) // starting up counts for nobody
		p.Done(0)
		// 100/s for 5 s, then 50/s for 5 s, none at the border of a slot
		time.Sleep(slotLength / 2)
		for range 10 {
			p.Done(50)
			time.Sleep(500 * time.Millisecond)
		}
		for range 10 {
			p.Done(25)
			time.Sleep(500 * time.Millisecond)
		}
		select {
		case <-p.Reached():
			t.Error("750 of 1,000 tasks reached the end")
		default:
		}
		if got := p.Elapsed(); got != 10*time.Second+slotLength/2 {
			t.Errorf("elapsed %v, want 10.01 s", got)
		}
		got := p.Windows(5*time.Second, 0, 10*time.Second)
		if len(got) != 2 || got[0] < 90 || got[0] > 110 || got[1] < 45 || got[1] > 55 {
			t.Errorf("windows %v, want about 100 and 50", got)
		}
		if got := p.Windows(5*time.Second, 0, 5500*time.Millisecond); len(got) != 1 {
			t.Errorf("windows %v, want one: the rest is too short", got)
		}
		if got := p.Windows(time.Minute, 0, 10*time.Second); len(got) != 1 || got[0] < 70 || got[0] > 80 {
			t.Errorf("windows %v, want the rate of all, about 75", got)
		}
	})
}

func TestTheLastTaskIsReached(t *testing.T) {
	p := NewProgress(2)
	p.Done(1)
	<-p.First()
	p.Done(1)
	p.Done(1) // one more than wanted changes nothing
	<-p.Reached()
	if p.Count() != 3 {
		t.Errorf("count %d, want 3", p.Count())
	}
}
