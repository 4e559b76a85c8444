package plan

import (
	"testing"
	"time"
)

// edgeStarts has a watermark for the ordinary class: the tasks 1 to 999 were claimed, one a
// millisecond, until now.
func edgeStarts(random bool, now time.Time) *Starts {
	s := &Starts{Random: random}
	for id := int64(1); id < 1000; id++ {
		s.Took(Claim{Limit: 1}, founds(id), now.Add(time.Duration(id-1000)*time.Millisecond))
	}
	s.turns = 0
	return s
}

func TestConcurrentClaimsAreSeparateInABacklogOnly(t *testing.T) {
	t.Parallel()
	now := time.Now()
	head := func(attempt int, waited time.Duration) *Head {
		return &Head{Position: Position{0, attempt, 1000}, Since: now.Add(-waited)}
	}
	few := &Starts{}
	few.Took(Claim{}, founds(make([]int64, watermarkAfter-1)...), now)
	enough := &Starts{}
	enough.Took(Claim{}, founds(make([]int64, watermarkAfter)...), now)
	for name, c := range map[string]struct {
		starts *Starts
		head   *Head
		want   bool
	}{
		"a backlog":                 {edgeStarts(false, now), head(0, watermarkBacklog+1), true},
		"a fresh head":              {edgeStarts(false, now), head(0, watermarkBacklog), false},
		"another class":             {edgeStarts(false, now), head(1, time.Hour), false},
		"random order":              {edgeStarts(true, now), head(0, time.Hour), false},
		"a new lane":                {&Starts{}, head(0, time.Hour), false},
		"too few claimed tasks":     {few, head(0, time.Hour), false},
		"just enough claimed tasks": {enough, head(0, time.Hour), true},
	} {
		if got := c.starts.Separate(c.head, now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestALaneKeepsTheWatermarksOfItsLatestClasses(t *testing.T) {
	t.Parallel()
	var w watermarks
	now := time.Now()
	for p := range 3 * maxWatermarks {
		now = claimMany(&w, p, 0, 1, watermarkAfter, now)
		for kept := max(0, p-maxWatermarks+1); kept <= p; kept++ {
			if w.of[Class{kept, 0}] == nil {
				t.Fatalf("after class %d the watermark of class %d is gone", p, kept)
			}
		}
		if len(w.of) > maxWatermarks {
			t.Fatalf("%d watermarks, want at most %d", len(w.of), maxWatermarks)
		}
	}
}

func TestTheFirstTaskOfAClaimCounts(t *testing.T) {
	t.Parallel()
	var f Found
	f.Add(Position{0, 0, 7}, -5, 1) // before 1970
	f.Add(Position{0, 0, 9}, -6, 1)
	if f.lastDue != (Due{-5, 7}) || len(f.classes) != 1 || f.classes[0] != (classFound{Position{0, 0, 9}, 2}) {
		t.Errorf("found %+v", f)
	}
}

func TestAPivotMayBeTheLastTask(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	for range 100 {
		seen[(&Head{Position: Position{TaskID: 1}, LastID: 2}).pivot().TaskID] = true
	}
	if !seen[1] || !seen[2] {
		t.Errorf("of two tasks the pivots are %v", seen)
	}
}
