package plan

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// runOf is what a claim of a class took that ended with the task.
func runOf(priority, attempt int, last int64, tasks int) []classFound {
	return []classFound{{last: Position{priority, attempt, last}, tasks: tasks}}
}

// claimMany notes claims of n tasks of a class, one a millisecond, and returns the time after that.
func claimMany(w *watermarks, priority, attempt int, first, n int64, now time.Time) time.Time {
	for id := first; id < first+n; id++ {
		now = now.Add(time.Millisecond)
		w.noteClaimed(runOf(priority, attempt, id, 1), w.movedBack, false, now)
	}
	return now
}

// A poll sees each task that is not below a watermark.
func TestSpansCoverEachTaskThatIsNotBelowAWatermarkOnce(t *testing.T) {
	t.Parallel()
	if spans := (&Starts{}).Spans(); spans != nil {
		t.Errorf("a new lane has the spans %+v", spans)
	}
	columns := []int{math.MinInt16, -1, 0, 1, 2, 3, math.MaxInt16}
	for range 2000 {
		w := watermarks{of: map[Class]*watermark{}}
		for range 1 + rand.IntN(maxWatermarks) {
			c := Class{columns[rand.IntN(len(columns))], columns[2+rand.IntN(len(columns)-2)]}
			w.of[c] = &watermark{at: Position{c.Priority, c.Attempt, 10}, claimed: watermarkAfter}
		}
		spans := w.spans()
		for _, priority := range columns {
			for _, attempt := range columns[2:] {
				for _, id := range []int64{9, 10} {
					at, in, want := Position{priority, attempt, id}, 0, 1
					if w.of[at.Class()] != nil && id < 10 {
						want = 0
					}
					for _, s := range spans {
						if at.Compare(s.First) >= 0 && at.Compare(Position{s.Last.Priority, s.Last.Attempt, math.MaxInt64}) <= 0 {
							in++
						}
					}
					if in != want {
						t.Fatalf("watermarks %v: %+v is in %d of the spans %+v, want %d", slices.Collect(maps.Keys(w.of)), at, in, spans, want)
					}
				}
			}
		}
		if len(spans) > 4*len(w.of) {
			t.Fatalf("%d spans of %d watermarks: %+v", len(spans), len(w.of), spans)
		}
		for _, s := range spans {
			if last := (Position{s.Last.Priority, s.Last.Attempt, math.MaxInt64}); last.Compare(s.First) < 0 ||
				s.First.Priority > maxColumn || s.Last.Attempt > maxColumn {
				t.Fatalf("the span %+v is empty", s)
			}
			if s.First.Priority < s.Last.Priority && (s.First != Class{s.First.Priority, 0}.Start() || s.Last.Attempt != maxColumn) {
				t.Fatalf("the span %+v has parts of several priorities", s)
			}
		}
	}
}

func TestFullPollsAreSeldomWhenTheyAreDear(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		took, after time.Duration
		due         bool
	}{
		{time.Millisecond, 0, true},
		{quickPoll, 0, false},
		{quickPoll, fullPollShare * quickPoll, true},
		{5 * time.Millisecond, 249 * time.Millisecond, false},
		{5 * time.Millisecond, 250 * time.Millisecond, true},
		{time.Second, 4 * time.Second, false},
		{time.Second, 5 * time.Second, true},
	} {
		var s FullPolls
		for i := range sampledPolls { // the least counts
			s.Note(c.took+time.Duration(i)*time.Second, now)
		}
		if got := s.Due(now.Add(c.after)); got != c.due {
			t.Errorf("%v after full polls of %v: due %t, want %t", c.after, c.took, got, c.due)
		}
	}
}

// Where tasks are claimed as fast as they come, each claim finds less than it might.
func TestTheWatermarkGoesOnWhenEachClaimIsShort(t *testing.T) {
	t.Parallel()
	var w watermarks
	now := time.Now()
	for id := int64(1); id <= 1000; id++ {
		now = claimMany(&w, 0, 0, id, 1, now)
		w.noteShort()
	}
	at := w.begin(&Head{Position: Position{0, 0, 1001}, Since: now}, 0, now)
	if lag := time.Duration(1000-at.TaskID) * time.Millisecond; lag > 2*watermarkLag+time.Millisecond {
		t.Errorf("the watermark is that of %v ago, want at most twice %v", lag, watermarkLag)
	}
}

func TestAPivotIsAnywhereInTheRangeOfTheLane(t *testing.T) {
	t.Parallel()
	h := &Head{Position: Position{3, 1, 1000}, LastID: 1999}
	var tenths [10]int
	for range 10_000 {
		p := h.pivot()
		if p.Class() != h.Class() || p.TaskID < 1000 || p.TaskID > 1999 {
			t.Fatalf("pivot %+v of head %+v", *p, *h)
		}
		tenths[(p.TaskID-1000)/100]++
	}
	if slices.Min(tenths[:]) < 850 || slices.Max(tenths[:]) > 1150 {
		t.Errorf("the tenths of the range have %v of 10,000 pivots", tenths)
	}
	for _, last := range []int64{0, 5} {
		if p := (&Head{Position: Position{0, 0, 5}, LastID: last}).pivot(); p != nil {
			t.Errorf("a lane without a range has pivot %+v", *p)
		}
	}
}
