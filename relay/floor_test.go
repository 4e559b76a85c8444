package relay

import (
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
	var f floors
	h := &head{pivot: pivot{0, 0, 1000}}
	now := eat(&f, 0, 0, 1, floorAfter-1, time.Now())
	if at := f.from(h, time.Time{}); at != nil || f.spans() != nil {
		t.Errorf("after %d tasks claims begin at %v", floorAfter-1, *at)
	}
	eat(&f, 0, 0, floorAfter, 1, now)
	if f.from(h, time.Time{}) == nil || f.spans() == nil {
		t.Errorf("after %d tasks claims begin at the head", floorAfter)
	}
}

// Transactions that took their ids before others, and commit after them, are above the floor if that was a moment ago.
func TestAFloorIsWhereClaimsWereAMomentAgo(t *testing.T) {
	var f floors
	eat(&f, 0, 0, 1, 1000, time.Now())
	at := f.from(&head{pivot: pivot{0, 0, 1001}}, time.Time{})
	lag := time.Duration(1000-at.taskID) * time.Millisecond
	if lag < floorLag || lag > 2*floorLag+time.Millisecond {
		t.Errorf("the floor is that of %v ago, want %v to twice that", lag, floorLag)
	}
}

// A look sees each task that is not below a floor: tasks that are more urgent, were attempted less or more, and are less urgent.
func TestTheSpansOfALaneAreAllOfItButWhatWasEaten(t *testing.T) {
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
			if c.at.compare(s.first) >= 0 && c.at.compare(s.end) < 0 {
				in++
			}
		}
		if (in == 1) != c.seen || in > 1 {
			t.Errorf("%+v is in %d spans, want it seen: %t", c.at, in, c.seen)
		}
	}
}

func TestATaskBelowAFloorMovesItBack(t *testing.T) {
	var f floors
	now := eat(&f, 0, 0, 1000, 500, time.Now())
	before := f.started
	low := &head{pivot: pivot{0, 0, 7}}
	f.saw(low)
	if at := f.from(low, time.Time{}); *at != low.pivot {
		t.Errorf("claims begin at %+v, want %+v", *at, low.pivot)
	}
	f.ate(bites(rowsOf(0, 0, 1501), false), before, now.Add(time.Second)) // a claim from before
	f.ate(nil, f.started, now.Add(2*time.Second))
	if at := f.from(low, time.Time{}); *at != low.pivot {
		t.Errorf("a claim from before has moved the floor to %+v", *at)
	}
	f.ate(bites(rowsOf(0, 0, 7), false), f.started, now.Add(3*time.Second))
	eat(&f, 0, 0, 1600, 100, now.Add(4*time.Second))
	if at := f.from(low, time.Time{}); at.taskID < 1600 {
		t.Errorf("the floor stays at %+v", *at)
	}
}

// The task that a look sees is where claims begin when its class was hardly eaten from, but another was.
func TestAClassWithoutAFloorIsReadFromItsFirstTask(t *testing.T) {
	var f floors
	eat(&f, 0, 0, 1, 500, time.Now())
	h := &head{pivot: pivot{0, 1, 3}}
	if at := f.from(h, time.Time{}); at == nil || *at != h.pivot {
		t.Errorf("claims begin at %v, want %+v", at, h.pivot)
	}
}

func TestALaneHasFewFloors(t *testing.T) {
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

func TestLooksAtAllAreSeldomWhenTheyAreDear(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		took, after time.Duration
		due         bool
	}{
		{time.Millisecond, 0, true},
		{5 * time.Millisecond, 499 * time.Millisecond, false},
		{5 * time.Millisecond, 500 * time.Millisecond, true},
		{time.Second, 4 * time.Second, false},
		{time.Second, 5 * time.Second, true},
	} {
		var s sweeps
		for range sampleLooks {
			s.made(c.took, now)
		}
		if got := s.due(now.Add(c.after)); got != c.due {
			t.Errorf("%v after looks of %v: due %t, want %t", c.after, c.took, got, c.due)
		}
	}
}

// What claims took a moment ago is locked until they commit.
func TestInABacklogAClaimBeginsWhereTheLastOneEnded(t *testing.T) {
	var f floors
	now := eat(&f, 0, 0, 1, 1000, time.Now())
	h := &head{pivot: pivot{0, 0, 1001}, since: now.Add(-2 * floorBacklog)}
	if at := f.from(h, now); at.taskID != 1000 {
		t.Errorf("claims begin at %d, want 1000, the last that was claimed", at.taskID)
	}
	h.since = now.Add(-floorBacklog / 2)
	if at := f.from(h, now); at.taskID > 1000-int64(floorLag/time.Millisecond) {
		t.Errorf("claims of fresh tasks begin at %d, with no room for late commits", at.taskID)
	}
}

// A task that others had locked, or gave back, while claims went past it is seen by looks but not by claims from where the last one
// ended.
func TestAClaimThatRunsShortSendsTheNextOneBackToTheFloor(t *testing.T) {
	var f floors
	now := eat(&f, 0, 0, 1, 1000, time.Now())
	left := &head{pivot: pivot{0, 0, 995}, since: now.Add(-2 * floorBacklog)}
	f.saw(left)
	f.ranShort()
	if at := f.from(left, now); at.compare(left.pivot) > 0 {
		t.Errorf("claims begin at %d, behind the task %d that is left", at.taskID, left.taskID)
	}
}
