package relay

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func rowsOf(priority, attempt int, ids ...int64) (rows []*row) {
	for _, id := range ids {
		rows = append(rows, &row{id: id, priority: priority, attempt: attempt})
	}
	return rows
}

// eat lets f eat n tasks of a class, one a millisecond, and returns the time after that.
func eat(f *floors, priority, attempt int, first, n int64, now time.Time) time.Time {
	for id := first; id < first+n; id++ {
		now = now.Add(time.Millisecond)
		f.ate(bites(rowsOf(priority, attempt, id), false), f.started, now)
	}
	return now
}

func TestClaimsBeginAtTheHeadUntilMuchWasEaten(t *testing.T) {
	t.Parallel()
	var f floors
	h := &head{pivot: pivot{0, 0, 1000}}
	now := eat(&f, 0, 0, 1, floorAfter-1, time.Now())
	if at := f.begin(h, 0, time.Time{}); at != nil || f.spans() != nil {
		t.Errorf("after %d tasks claims begin at %v", floorAfter-1, *at)
	}
	eat(&f, 0, 0, floorAfter, 1, now)
	if f.begin(h, 0, time.Time{}) == nil || f.spans() == nil {
		t.Errorf("after %d tasks claims begin at the head", floorAfter)
	}
}

// Transactions that took their ids before others, and commit after them, are above the floor if that was a moment ago.
func TestAFloorIsWhereClaimsWereAMomentAgo(t *testing.T) {
	t.Parallel()
	var f floors
	eat(&f, 0, 0, 1, 1000, time.Now())
	at := f.begin(&head{pivot: pivot{0, 0, 1001}}, 0, time.Time{})
	lag := time.Duration(1000-at.taskID) * time.Millisecond
	if lag < floorLag || lag > 2*floorLag+time.Millisecond {
		t.Errorf("the floor is that of %v ago, want %v to twice that", lag, floorLag)
	}
}

// A poll sees each task that is not below a floor: tasks that are more urgent, were attempted less or more, and are less urgent.
func TestTheSpansOfALaneAreAllOfItButWhatWasEaten(t *testing.T) {
	t.Parallel()
	var f floors
	now := eat(&f, 0, 0, 1000, 500, time.Now())
	eat(&f, 5, 1, 1000, 500, now)
	spans := f.spans()
	for _, c := range []struct {
		at   pivot
		seen bool
	}{
		{pivot{-32768, 0, 1}, true}, {pivot{-1, 7, 2000}, true},
		{pivot{0, 0, 1100}, false}, {pivot{0, 0, 1600}, true}, {pivot{0, 1, 1}, true}, {pivot{3, 0, 1}, true}, {pivot{5, 0, 1200}, true},
		{pivot{5, 1, 1200}, false}, {pivot{5, 1, 1499}, true}, {pivot{5, 2, 1}, true}, {pivot{32767, 32766, 5}, true},
	} {
		in := 0
		for _, s := range spans {
			if c.at.compare(s.first) >= 0 && c.at.compare(pivot{s.last.priority, s.last.attempt, math.MaxInt64}) <= 0 {
				in++
			}
		}
		if (in == 1) != c.seen || in > 1 {
			t.Errorf("%+v is in %d spans, want it seen: %t", c.at, in, c.seen)
		}
	}
}

func TestSpansCoverEachTaskThatIsNotBelowAFloorOnce(t *testing.T) {
	t.Parallel()
	columns := []int{math.MinInt16, -1, 0, 1, 2, 3, math.MaxInt16}
	for range 2000 {
		f := floors{of: map[class]*floor{}}
		for range 1 + rand.IntN(maxFloors) {
			c := class{columns[rand.IntN(len(columns))], columns[2+rand.IntN(len(columns)-2)]}
			f.of[c] = &floor{at: pivot{c.priority, c.attempt, 10}, eaten: floorAfter}
		}
		spans := f.spans()
		for _, priority := range columns {
			for _, attempt := range columns[2:] {
				for _, id := range []int64{9, 10} {
					at, in, want := pivot{priority, attempt, id}, 0, 1
					if f.of[at.class()] != nil && id < 10 {
						want = 0
					}
					for _, s := range spans {
						if at.compare(s.first) >= 0 && at.compare(pivot{s.last.priority, s.last.attempt, math.MaxInt64}) <= 0 {
							in++
						}
					}
					if in != want {
						t.Fatalf("floors %v: %+v is in %d of the spans %+v, want %d", slices.Collect(maps.Keys(f.of)), at, in, spans, want)
					}
				}
			}
		}
		for _, s := range spans {
			if s.first.priority < s.last.priority && (s.first != class{s.first.priority, 0}.start() || s.last.attempt != maxColumn) {
				t.Fatalf("the span %+v has parts of several priorities", s)
			}
		}
	}
}

func TestATaskBelowAFloorMovesItBack(t *testing.T) {
	t.Parallel()
	var f floors
	now := eat(&f, 0, 0, 1000, 500, time.Now())
	before := f.started
	low := &head{pivot: pivot{0, 0, 7}}
	f.saw(low)
	if at := f.begin(low, 0, time.Time{}); *at != low.pivot {
		t.Errorf("claims begin at %+v, want %+v", *at, low.pivot)
	}
	f.ate(bites(rowsOf(0, 0, 1501), false), before, now.Add(time.Second)) // a claim from before
	f.ate(nil, f.started, now.Add(2*time.Second))
	if at := f.begin(low, 0, time.Time{}); *at != low.pivot {
		t.Errorf("a claim from before has moved the floor to %+v", *at)
	}
	f.ate(bites(rowsOf(0, 0, 7), false), f.started, now.Add(3*time.Second))
	eat(&f, 0, 0, 1600, 100, now.Add(4*time.Second))
	if at := f.begin(low, 0, time.Time{}); at.taskID < 1600 {
		t.Errorf("the floor stays at %+v", *at)
	}
}

// The task that a poll sees is where claims begin when its class was hardly eaten from, but another was.
func TestAClassWithoutAFloorIsReadFromItsFirstTask(t *testing.T) {
	t.Parallel()
	var f floors
	eat(&f, 0, 0, 1, 500, time.Now())
	h := &head{pivot: pivot{0, 1, 3}}
	if at := f.begin(h, 0, time.Time{}); at == nil || *at != h.pivot {
		t.Errorf("claims begin at %v, want %+v", at, h.pivot)
	}
}

func TestALaneHasFewFloors(t *testing.T) {
	t.Parallel()
	var f floors
	now := time.Now()
	for p := range 3 * maxFloors {
		now = eat(&f, p, 0, 1, floorAfter, now)
	}
	if len(f.of) > maxFloors {
		t.Errorf("%d floors, want at most %d", len(f.of), maxFloors)
	}
	if f.of[class{3*maxFloors - 1, 0}] == nil {
		t.Error("the latest class has none")
	}
}

func TestFullPollsAreSeldomWhenTheyAreDear(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		took, others, after time.Duration
		idle, due           bool
	}{
		{time.Millisecond, 0, 0, false, true},
		{5 * time.Millisecond, 0, 999 * time.Millisecond, false, false},
		{5 * time.Millisecond, 0, 1000 * time.Millisecond, false, true},
		{time.Second, 0, 4 * time.Second, false, false},
		{time.Second, 0, 5 * time.Second, false, true},
		{time.Second, time.Second, 0, false, true}, // not dear: the machine is slow
		{time.Second, 2 * time.Second, 0, false, true},
		{30 * time.Millisecond, 25 * time.Millisecond, 999 * time.Millisecond, false, false},
		{30 * time.Millisecond, 25 * time.Millisecond, 1000 * time.Millisecond, false, true},
		{50 * time.Millisecond, 0, 999 * time.Millisecond, true, false},
		{50 * time.Millisecond, 0, 1000 * time.Millisecond, true, true},
		{50 * time.Millisecond, 0, 1000 * time.Millisecond, false, false},
	} {
		var s fullPolls
		for i := range sampledPolls { // the least counts
			s.note(true, c.took+time.Duration(i)*time.Second, now)
			s.note(false, c.others+time.Duration(i)*time.Second, now)
		}
		if got := s.due(c.idle, now.Add(c.after)); got != c.due {
			t.Errorf("%v after full polls of %v, others of %v, idle %t: due %t, want %t", c.after, c.took, c.others, c.idle, got, c.due)
		}
	}
}

// What claims took a moment ago is locked until they commit.
func TestInABacklogAClaimBeginsWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	var f floors
	now := eat(&f, 0, 0, 1, 1000, time.Now())
	h := &head{pivot: pivot{0, 0, 1001}, since: now.Add(-2 * floorBacklog)}
	if at := f.begin(h, 0, now); at.taskID != 1001 {
		t.Errorf("claims begin at %d, want 1001, behind the last that was claimed", at.taskID)
	}
	h.since = now.Add(-floorBacklog / 2)
	if at := f.begin(h, 0, now); at.taskID > 1000-int64(floorLag/time.Millisecond) {
		t.Errorf("claims of fresh tasks begin at %d, with no room for late commits", at.taskID)
	}
}

// Claims that are under way have each its own tasks, until one of them finds less than it might.
func TestClaimsOfABacklogBeginBehindEachOther(t *testing.T) {
	t.Parallel()
	var f floors
	now := eat(&f, 0, 0, 1, 1000, time.Now())
	h := &head{pivot: pivot{0, 0, 1001}, since: now.Add(-2 * floorBacklog)}
	begin := func(want int64) {
		t.Helper()
		if at := f.begin(h, 10, now); at.taskID != want {
			t.Errorf("a claim begins at %d, want %d", at.taskID, want)
		}
	}
	begin(1001)
	begin(1011)
	f.ate(bites(rowsOf(0, 0, 1018, 1019, 1020), false), f.started, now)
	begin(1021)
	f.ate(bites(rowsOf(0, 0, 1050), false), f.started, now) // ids are missing
	begin(1051)
	f.ranShort()
	begin(f.of[class{}].at.taskID)
	h.since = now
	begin(f.of[class{}].at.taskID)
	begin(f.of[class{}].at.taskID)
}

// A task that others had locked, or gave back, while claims went past it is seen by polls but not by claims from where the last one
// ended.
func TestAClaimThatRunsShortSendsTheNextOneBackToTheFloor(t *testing.T) {
	t.Parallel()
	var f floors
	now := eat(&f, 0, 0, 1, 1000, time.Now())
	left := &head{pivot: pivot{0, 0, 995}, since: now.Add(-2 * floorBacklog)}
	f.saw(left)
	f.ranShort()
	if at := f.begin(left, 0, now); at.compare(left.pivot) > 0 {
		t.Errorf("claims begin at %d, behind the task %d that is left", at.taskID, left.taskID)
	}
}

// Half of the ids are of other types: 20 tasks are among 40 ids.
func TestAClaimReadsFirstWhereItsTasksAreLikely(t *testing.T) {
	t.Parallel()
	var f floors
	if n := f.near(&pivot{0, 0, 1}, 20); n != 0 {
		t.Errorf("nothing was claimed, and tasks are likely among %d ids", n)
	}
	now := time.Now()
	for id := int64(1); id < 1001; id += 2 {
		f.ate(bites(rowsOf(0, 0, id), false), f.started, now)
	}
	for _, c := range []struct {
		from *pivot
		want int64
	}{{&pivot{0, 0, 500}, 20}, {&pivot{0, 1, 500}, 0}, {nil, 0}} {
		if got := f.near(c.from, 20); got != c.want {
			t.Errorf("from %v: %d, want %d", c.from, got, c.want)
		}
	}
}

// Where tasks are claimed as fast as they come, each claim finds less than it might.
func TestTheFloorGoesOnWhenEachClaimRunsShort(t *testing.T) {
	t.Parallel()
	var f floors
	now := time.Now()
	for id := int64(1); id <= 1000; id++ {
		now = eat(&f, 0, 0, id, 1, now)
		f.ranShort()
	}
	at := f.begin(&head{pivot: pivot{0, 0, 1001}, since: now}, 0, now)
	if lag := time.Duration(1000-at.taskID) * time.Millisecond; lag > 2*floorLag+time.Millisecond {
		t.Errorf("the floor is that of %v ago, want at most twice %v", lag, floorLag)
	}
}
