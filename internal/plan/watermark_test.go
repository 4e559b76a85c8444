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
func runOf(priority, attempt int, last int64, tasks int) []ClaimedRun {
	return []ClaimedRun{{Last: Position{priority, attempt, last}, Tasks: tasks}}
}

// claimMany notes claims of n tasks of a class, one a millisecond, and returns the time after that.
func claimMany(w *Watermarks, priority, attempt int, first, n int64, now time.Time) time.Time {
	for id := first; id < first+n; id++ {
		now = now.Add(time.Millisecond)
		w.NoteClaimed(runOf(priority, attempt, id, 1), w.Started, now)
	}
	return now
}

func TestClaimsBeginAtTheHeadUntilMuchWasClaimed(t *testing.T) {
	t.Parallel()
	var w Watermarks
	h := &Head{Position: Position{0, 0, 1000}}
	now := claimMany(&w, 0, 0, 1, WatermarkAfter-1, time.Now())
	if at := w.Begin(h, 0, time.Time{}); at != nil || w.Spans() != nil {
		t.Errorf("after %d tasks claims begin at %v", WatermarkAfter-1, *at)
	}
	claimMany(&w, 0, 0, WatermarkAfter, 1, now)
	if w.Begin(h, 0, time.Time{}) == nil || w.Spans() == nil {
		t.Errorf("after %d tasks claims begin at the head", WatermarkAfter)
	}
}

// Transactions that took their ids before others, and commit after them, are above the watermark if
// that was a moment ago.
func TestAWatermarkIsWhereClaimsWereAMomentAgo(t *testing.T) {
	t.Parallel()
	var w Watermarks
	claimMany(&w, 0, 0, 1, 1000, time.Now())
	at := w.Begin(&Head{Position: Position{0, 0, 1001}}, 0, time.Time{})
	lag := time.Duration(1000-at.TaskID) * time.Millisecond
	if lag < watermarkLag || lag > 2*watermarkLag+time.Millisecond {
		t.Errorf("the watermark is that of %v ago, want %v to twice that", lag, watermarkLag)
	}
}

// A poll sees each task that is not below a watermark.
func TestSpansCoverEachTaskThatIsNotBelowAWatermarkOnce(t *testing.T) {
	t.Parallel()
	columns := []int{math.MinInt16, -1, 0, 1, 2, 3, math.MaxInt16}
	for range 2000 {
		w := Watermarks{of: map[Class]*watermark{}}
		for range 1 + rand.IntN(maxWatermarks) {
			c := Class{columns[rand.IntN(len(columns))], columns[2+rand.IntN(len(columns)-2)]}
			w.of[c] = &watermark{at: Position{c.Priority, c.Attempt, 10}, claimed: WatermarkAfter}
		}
		spans := w.Spans()
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
		for _, s := range spans {
			if s.First.Priority < s.Last.Priority && (s.First != Class{s.First.Priority, 0}.Start() || s.Last.Attempt != maxColumn) {
				t.Fatalf("the span %+v has parts of several priorities", s)
			}
		}
	}
}

func TestATaskBelowAWatermarkMovesItBack(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := claimMany(&w, 0, 0, 1000, 500, time.Now())
	before := w.Started
	low := &Head{Position: Position{0, 0, 7}}
	w.Adjust(low)
	if at := w.Begin(low, 0, time.Time{}); *at != low.Position {
		t.Errorf("claims begin at %+v, want %+v", *at, low.Position)
	}
	w.NoteClaimed(runOf(0, 0, 1501, 1), before, now.Add(time.Second)) // a claim from before
	w.NoteClaimed(nil, w.Started, now.Add(2*time.Second))
	if at := w.Begin(low, 0, time.Time{}); *at != low.Position {
		t.Errorf("a claim from before has moved the watermark to %+v", *at)
	}
	w.NoteClaimed(runOf(0, 0, 7, 1), w.Started, now.Add(3*time.Second))
	claimMany(&w, 0, 0, 1600, 100, now.Add(4*time.Second))
	if at := w.Begin(low, 0, time.Time{}); at.TaskID < 1600 {
		t.Errorf("the watermark stays at %+v", *at)
	}
}

// The task that a poll sees is where claims begin when few of its class were claimed, but many of
// another.
func TestAClassWithoutAWatermarkIsReadFromItsFirstTask(t *testing.T) {
	t.Parallel()
	var w Watermarks
	claimMany(&w, 0, 0, 1, 500, time.Now())
	h := &Head{Position: Position{0, 1, 3}}
	if at := w.Begin(h, 0, time.Time{}); at == nil || *at != h.Position {
		t.Errorf("claims begin at %v, want %+v", at, h.Position)
	}
}

func TestALaneHasFewWatermarks(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := time.Now()
	for p := range 3 * maxWatermarks {
		now = claimMany(&w, p, 0, 1, WatermarkAfter, now)
	}
	if len(w.of) > maxWatermarks {
		t.Errorf("%d watermarks, want at most %d", len(w.of), maxWatermarks)
	}
	if w.of[Class{3*maxWatermarks - 1, 0}] == nil {
		t.Error("the latest class has none")
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

// What claims took a moment ago is locked until they commit.
func TestInABacklogAClaimBeginsWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := claimMany(&w, 0, 0, 1, 1000, time.Now())
	h := &Head{Position: Position{0, 0, 1001}, Since: now.Add(-2 * watermarkBacklog)}
	if at := w.Begin(h, 0, now); at.TaskID != 1001 {
		t.Errorf("claims begin at %d, want 1001, behind the last that was claimed", at.TaskID)
	}
	h.Since = now.Add(-watermarkBacklog / 2)
	if at := w.Begin(h, 0, now); at.TaskID > 1000-int64(watermarkLag/time.Millisecond) {
		t.Errorf("claims of fresh tasks begin at %d, with no room for late commits", at.TaskID)
	}
}

// Claims that are under way have each its own tasks, until one of them finds less than it might.
func TestClaimsOfABacklogBeginBehindEachOther(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := claimMany(&w, 0, 0, 1, 1000, time.Now())
	h := &Head{Position: Position{0, 0, 1001}, Since: now.Add(-2 * watermarkBacklog)}
	begin := func(want int64) {
		t.Helper()
		if at := w.Begin(h, 10, now); at.TaskID != want {
			t.Errorf("a claim begins at %d, want %d", at.TaskID, want)
		}
	}
	begin(1001)
	begin(1011)
	w.NoteClaimed(runOf(0, 0, 1020, 3), w.Started, now)
	begin(1021)
	w.NoteClaimed(runOf(0, 0, 1050, 1), w.Started, now) // ids are missing
	begin(1051)
	w.NoteShort()
	begin(w.of[Class{}].at.TaskID)
	h.Since = now
	begin(w.of[Class{}].at.TaskID)
	begin(w.of[Class{}].at.TaskID)
}

// A task that others had locked, or gave back, while claims went past it is seen by polls but not
// by claims from where the last one ended.
func TestAShortClaimSendsTheNextOneBackToTheWatermark(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := claimMany(&w, 0, 0, 1, 1000, time.Now())
	left := &Head{Position: Position{0, 0, 995}, Since: now.Add(-2 * watermarkBacklog)}
	w.Adjust(left)
	w.NoteShort()
	if at := w.Begin(left, 0, now); at.Compare(left.Position) > 0 {
		t.Errorf("claims begin at %d, behind the task %d that is left", at.TaskID, left.TaskID)
	}
}

// Where tasks are claimed as fast as they come, each claim finds less than it might.
func TestTheWatermarkGoesOnWhenEachClaimIsShort(t *testing.T) {
	t.Parallel()
	var w Watermarks
	now := time.Now()
	for id := int64(1); id <= 1000; id++ {
		now = claimMany(&w, 0, 0, id, 1, now)
		w.NoteShort()
	}
	at := w.Begin(&Head{Position: Position{0, 0, 1001}, Since: now}, 0, now)
	if lag := time.Duration(1000-at.TaskID) * time.Millisecond; lag > 2*watermarkLag+time.Millisecond {
		t.Errorf("the watermark is that of %v ago, want at most twice %v", lag, watermarkLag)
	}
}

func TestAPivotIsAnywhereInTheRangeOfTheLane(t *testing.T) {
	t.Parallel()
	h := &Head{Position: Position{3, 1, 1000}, LastID: 1999}
	var tenths [10]int
	for range 10_000 {
		p := h.RandomStart()
		if p.Class() != h.Class() || p.TaskID < 1000 || p.TaskID > 1999 {
			t.Fatalf("pivot %+v of head %+v", *p, *h)
		}
		tenths[(p.TaskID-1000)/100]++
	}
	if slices.Min(tenths[:]) < 850 || slices.Max(tenths[:]) > 1150 {
		t.Errorf("the tenths of the range have %v of 10,000 pivots", tenths)
	}
	for _, last := range []int64{0, 5} {
		if p := (&Head{Position: Position{0, 0, 5}, LastID: last}).RandomStart(); p != nil {
			t.Errorf("a lane without a range has pivot %+v", *p)
		}
	}
}
