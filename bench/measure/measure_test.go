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
	if n := p.done.Load(); n != 3 {
		t.Errorf("count %d, want 3", n)
	}
}

func TestMedianIsTheMiddleOrTheMeanOfTheTwoInTheMiddle(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestQuantileIsAValueThatWasMeasured(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[99-i] = float64(i + 1)
	}
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{{nil, 0.5, 0}, {[]float64{7}, 0.99, 7}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0,
		1}, {[]float64{1, 2, 3}, 0.5, 2}} {
		if got := Quantile(c.values, c.q); got != c.want {
			t.Errorf("Quantile of %d values at %v = %v, want %v", len(c.values), c.q, got, c.want)
		}
	}
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	// The machine was half as fast in round 1: the ratio of the medians would say 1.5.
	ours := map[int]float64{0: 200, 1: 100, 2: 300}
	theirs := map[int]float64{0: 100, 1: 50, 2: 150}
	if got := Ratio(ours, theirs); got != (Summary{Median: 2, Min: 2, Max: 2, N: 3}) {
		t.Errorf("Ratio = %+v, want 2 in each of 3 rounds", got)
	}
	if got := Ratio(map[int]float64{0: 6}, map[int]float64{1: 3}); got.N != 0 {
		t.Errorf("without a common round: %+v, want no ratio", got)
	}
	if got := Ratio(ours, nil); got.N != 0 {
		t.Errorf("against nothing: %+v, want no ratio", got)
	}
	if got := Ratio(map[int]float64{0: 1}, map[int]float64{0: 0}); got.N != 0 {
		t.Errorf("against 0: %+v, want no ratio", got)
	}
}

func TestSamplesAreSummedUpOverRounds(t *testing.T) {
	var s Samples
	s.Add("c", "a", "m", 0, 2)
	s.Add("c", "a", "m", 1, 10)
	s.Add("c", "b", "m", 0, 5)
	s.Add("c", "b", "other", 0, 5)
	s.Add("d", "a", "m", 0, 1000)
	if got := s.Of("c", "a", "m"); got != (Summary{Median: 6, Min: 2, Max: 10, N: 2}) {
		t.Errorf("Of = %+v, want the median 6 of 2 and 10", got)
	}
	if got := s.Sides("c"); len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Errorf("Sides = %v, want a and b", got)
	}
	if got := s.Of("c", "nobody", "m"); got.N != 0 {
		t.Errorf("Of nobody = %+v, want nothing", got)
	}
}
