package plan

import (
	"slices"
	"testing"
	"time"
)

// newLanes are lanes that all have work: each takes its base priority and its head's priority.
func newLanes(workers int, priorities ...[2]int) *lanes {
	l := &lanes{workers: workers}
	for _, p := range priorities {
		c := &lane{of: Type{Priority: p[0], ClaimSize: 1}}
		c.polled(&Head{Position: Position{Priority: p[1]}, Since: time.Now()}, time.Now())
		l.all = append(l.all, c)
	}
	return l
}

// chosenLane is the lane to claim from next, or nil.
func (l *lanes) chosenLane() *lane {
	c, _ := l.next(l.workers, time.Now())
	return c
}

// chosen counts how often each lane is chosen when it always has more.
func (l *lanes) chosen(n int) []int {
	out := make([]int, len(l.all))
	for range n {
		c := l.chosenLane()
		for i := range l.all {
			if l.all[i] == c {
				out[i]++
			}
		}
		c.servedAt = time.Now()
	}
	return out
}

func TestTheMostUrgentLaneIsChosenAndEveryTenthTimeTheOneThatWaitsLongest(t *testing.T) {
	t.Parallel()
	// Base and row priorities add up: -5, -4, -6.
	got := newLanes(10, [2]int{-10, 5}, [2]int{5, -9}, [2]int{-3, -3}).chosen(1000)
	if got[2] < 900 || got[0] < 30 || got[1] < 30 {
		t.Errorf("lanes were chosen %v times; want the third 900 times at least, and the others every tenth time in turn", got)
	}
}

func TestLanesOfEqualUrgencyAreChosenAlike(t *testing.T) {
	t.Parallel()
	for i, n := range newLanes(10, [2]int{1, 0}, [2]int{0, 1}, [2]int{2, -1}, [2]int{-1, 2}).chosen(4000) {
		if n < 850 || n > 1150 {
			t.Errorf("lane %d was chosen %d times of 4000, want about 1000", i, n)
		}
	}
}

func TestATypeMayHoldAllWorkersButOneWhileThereAreOthers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ types, workers, running, room int }{
		{1, 10, 0, 10}, {1, 10, 9, 1}, {1, 10, 10, 0},
		{2, 10, 0, 9}, {2, 10, 8, 1}, {2, 10, 9, 0},
		{2, 1, 0, 1}, {2, 1, 1, 0}, {3, 2, 1, 0},
	} {
		l := newLanes(c.workers, make([][2]int, c.types)...)
		l.all[0].running = c.running
		if got := l.room(l.all[0]); got != c.room {
			t.Errorf("%+v: room for %d", c, got)
		}
		if capped := l.capped(); capped != (c.room == 0) {
			t.Errorf("%+v: capped is %t", c, capped)
		}
		if c.types == 1 {
			continue
		}
		l.all[1].credit = 0
		if chosen := l.chosenLane(); (chosen == l.all[0]) != (c.room > 0) {
			t.Errorf("%+v: the lane was chosen %t, want %t", c, chosen == l.all[0], c.room > 0)
		}
	}
}

func TestALaneIsClaimedFromOnlyWhileItMayHaveMore(t *testing.T) {
	t.Parallel()
	l := newLanes(4, [2]int{})
	c := l.all[0]
	found := founds(0)
	took := func(limit int) { c.found(Claim{Limit: limit, Began: time.Now()}, found, 4, time.Now()) }
	before := Claim{Limit: 2, Began: time.Now()}
	for _, step := range []struct {
		what string
		do   func()
		want int // claims that may be begun
	}{
		{"a poll saw a task", func() {}, 1},
		{"it is being claimed", func() { c.credit-- }, 0},
		{"a full claim", func() { took(1) }, 2},
		{"two more, up to the number of workers", func() { took(1); took(1) }, 4},
		{"a poll takes none back", func() { c.polled(c.head, time.Now()) }, 4},
		{"a claim that was not full, but began before that poll", func() { c.found(before, found, 4, time.Now()) }, 1},
		{"one that began after it", func() { took(2) }, 0},
		{"a poll sees a task again", func() { c.polled(&Head{}, time.Now()) }, 1},
		{"a poll sees none", func() { c.polled(nil, time.Now()) }, 0},
		{"a late claim had one all the same", func() { took(1) }, 2},
	} {
		step.do()
		if c.credit != step.want || l.choosable(time.Now()) != (step.want > 0 && c.head != nil) {
			t.Fatalf("%s: %d claims may be begun, want %d; choosable is %t", step.what, c.credit, step.want, l.choosable(time.Now()))
		}
	}
}

// A lane with one urgent task must not be served before the others for as long as the last poll is
// believed.
func TestWhatAClaimTookCorrectsTheUrgencyOfItsLane(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{0, -5}, [2]int{0, 0})
	if c := l.chosenLane(); c != l.all[0] {
		t.Fatal("the urgent lane was not chosen")
	}
	var found Found
	found.Add(Position{Priority: -5}, 0, 0)
	found.Add(Position{Priority: 7}, 0, 0)
	l.all[0].found(Claim{Limit: 2}, found, 10, time.Now())
	if c := l.chosenLane(); c != l.all[1] {
		t.Error("a lane that is down to priority 7 was chosen before one with priority 0")
	}
}

// Slots that wait for a claim of leased tasks are for no lane that is less urgent, as long as that
// claim may yet be one that goes well.
func TestSlotsThatWaitForAClaimAreKeptFromLessUrgentLanes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(waits, other *lane)
		want   int // workers for the other lane
	}{
		{"less urgent", func(waits, other *lane) { other.starts.urgent = 1 }, 0},
		{"as urgent", func(waits, other *lane) {}, 9},
		{"more urgent", func(waits, other *lane) { other.starts.urgent = -1 }, 9},
		{"the claim hangs", func(waits, other *lane) { other.starts.urgent, waits.servedAt = 1, time.Now().Add(-pollFresh) }, 9},
		{"it may find nothing more", func(waits, other *lane) { other.starts.urgent, waits.credit = 1, 0 }, 9},
	} {
		l := newLanes(10, [2]int{}, [2]int{})
		for _, lane := range l.all {
			lane.of.Kind, lane.credit = leasedKind, 10
		}
		waits, other := l.all[0], l.all[1]
		l.claimBegins(waits)
		waits.servedAt = time.Now()
		c.change(waits, other)
		lane, got := l.next(9, time.Now())
		if lane == waits {
			t.Errorf("%s: a second claim of the lane", c.name)
		}
		if got != c.want {
			t.Errorf("%s: %d workers for the other lane, want %d", c.name, got, c.want)
		}
	}
}

func TestTheNextLeaseBeginsWhileTheLastOneCommits(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{})
	c := l.all[0]
	c.of.Kind, c.credit, c.servedAt = leasedKind, 10, time.Now()
	for _, step := range []struct {
		what string
		do   func()
		want int // claims
	}{
		{"nothing under way", func() {}, 1},
		{"one looks", func() { l.claimBegins(c) }, 0},
		{"it commits", func() { c.claims.looking-- }, 1},
		{"another one looks", func() { l.claimBegins(c) }, 0},
		{"both commit", func() { c.claims.looking-- }, 0},
		{"one has come back", func() { l.claimEnds(c) }, 1},
	} {
		step.do()
		if got, _ := l.next(5, time.Now()); (got != nil) != (step.want > 0) {
			t.Errorf("%s: a claim: %t, want %d", step.what, got != nil, step.want)
		}
	}
	for workers, want := range map[int]int{1: 1, 10: 10, 60: 50, 100: 50, 101: 51, 1000: 500} {
		if got := leasePortion(workers); got != want {
			t.Errorf("a claim of %d workers takes %d, want %d", workers, got, want)
		}
	}
}

// Any role can send NOTIFY with any text.
func TestAWakeUpIsReadOnlyIfItIsOneOfATaskOfAnIdleLane(t *testing.T) {
	t.Parallel()
	l := newLanes(4, [2]int{0, 0}, [2]int{0, 0})
	l.all[0].of.Name, l.all[1].of.Name = "IDLE", "BUSY"
	l.all[0].polled(nil, time.Now())
	for text, want := range map[string]bool{
		"0 1 IDLE": true, "-32768 9223372036854775807 IDLE": true,
		"32768 1 IDLE": false, "-32769 1 IDLE": false, "0 0 IDLE": false, "0 -1 IDLE": false,
		"0 9223372036854775808 IDLE": false, "0 1 OTHER": false, "0 1 BUSY": false, "0 1 IDLE ": false,
		"": false, " ": false, "0 1": false, "x 1 IDLE": false, "0 x IDLE": false, "0x1 1 IDLE": false,
	} {
		c, _ := l.named(text)
		if got := c != nil; got != want {
			t.Errorf("%q names a lane: %v, want %v", text, got, want)
		}
	}
	if l.all[0].head != nil || l.all[0].credit != 0 {
		t.Errorf("a wake-up made a head of the lane: %+v", l.all[0].head)
	}
}

func TestLimitsOfATypeBoundItsRoom(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{})
	l.all[0].of.MaxRunningPerRelay, l.all[0].of.MaxRunning, l.all[0].running = 5, 3, 2
	if got := l.room(l.all[0]); got != 1 {
		t.Errorf("room for %d, want 1", got)
	}
	l.all[0].running = 3
	if l.choosable(time.Now()) || l.capped() || l.chosenLane() != nil {
		t.Error("a lane at its limit can be chosen, or counts as a lane that other types hold up")
	}
}

// Beside other types a claim of leased tasks takes the slots that it will probably need; alone all.
func TestAClaimOfLeasedTasksLeavesSlotsToOtherTypes(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{}, [2]int{1})
	c := l.all[0]
	c.of.Kind, c.credit = leasedKind, 3
	if _, got := l.next(8, time.Now()); got != 3 {
		t.Errorf("beside another type: %d slots, want 3", got)
	}
	l.all[1].polled(nil, time.Now())
	if _, got := l.next(8, time.Now()); got != 8 {
		t.Errorf("alone: %d slots, want 8", got)
	}
}

// The bounds of the app count what runs, and hold beside the limits of the type.
func TestBoundsOfTheAppBoundARoom(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{2, 3}, [2]int{})
	c := l.all[0]
	c.of.Name, c.of.Kind, c.credit, c.of.MaxRunningPerRelay, c.running = "A", leasedKind, 10, 8, 2
	l.all[1].of.Name = "B"
	l.all[1].polled(nil, time.Now())
	now := c.head.Since.Add(time.Minute)
	var bounds map[string]int
	var asked []Load
	l.bound = func(free int, types []Load) map[string]int {
		if free != 5 {
			t.Errorf("asked for %d free slots, want 5", free)
		}
		asked = types
		return bounds
	}
	for _, step := range []struct {
		bound, want int
		heldBack    bool
	}{{-1, 0, true}, {0, 0, true}, {2, 0, true}, {3, 1, false}, {7, 5, false}, {99, 5, false}} {
		bounds = map[string]int{"A": step.bound}
		if _, got := l.next(5, now); got != step.want || l.heldBack() != step.heldBack || l.choosable(now) == step.heldBack {
			t.Errorf("bound %d: %d workers, held back: %t; want %d, %t", step.bound, got, l.heldBack(), step.want, step.heldBack)
		}
	}
	if want := []Load{{"A", 2, true, 5, time.Minute}, {"B", 0, false, 0, 0}}; !slices.Equal(asked, want) {
		t.Errorf("asked with %+v, want %+v", asked, want)
	}
	bounds, c.of.MaxRunningPerRelay = nil, 0
	if _, got := l.next(5, now); got != 5 || l.heldBack() {
		t.Errorf("without a bound: %d workers, want 5", got)
	}
}
