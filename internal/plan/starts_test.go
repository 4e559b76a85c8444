package plan

import (
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// founds are tasks of ordinary priority that a claim took, with these ids as their due times too.
func founds(ids ...int64) (f Found) {
	for _, id := range ids {
		f.Add(Position{TaskID: id}, id, 1)
	}
	return f
}

func TestThePlacesOfAClaim(t *testing.T) {
	t.Parallel()
	from, pivot, runAt := Position{1, 2, 3}, Position{0, 1, 9}, int64(5)
	const most = math.MaxInt16
	for _, c := range []struct {
		start Start
		want  []Place
	}{
		{Start{}, []Place{{From: LaneStart, Most: most}}},
		{Start{From: &from}, []Place{{From: from, Most: most}}},
		{Start{Pivot: &pivot}, []Place{{From: pivot, Most: 0}, {From: LaneStart, Most: most}}},
		{Start{Pivot: &pivot, From: &from}, []Place{{From: pivot, Most: 0}, {From: from, Most: most}}},
		{Start{Due: &Due{runAt, 7}}, []Place{{From: Position{TaskID: 7}, Most: most, Due: &runAt}}},
	} {
		if got := c.start.Places(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.start, got, c.want)
		}
	}
}

func TestAClaimFindsTheLastTaskOfEachClassAndOfAllByDueTime(t *testing.T) {
	t.Parallel()
	var f Found
	f.Add(Position{0, 1, 5}, 30, 10) // in random order a group is not sorted
	f.Add(Position{0, 0, 9}, 20, 1)
	f.Add(Position{7, 0, 2}, 40, 1)
	f.Add(Position{0, 0, 4}, 40, 1)
	want := Found{Tasks: 4, Bytes: 13, lastDue: Due{40, 4},
		classes: []classFound{{Position{0, 1, 5}, 1}, {Position{0, 0, 9}, 2}, {Position{7, 0, 2}, 1}}}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("got %+v, want %+v", f, want)
	}
	if got := f.leastUrgent(); got != 7 {
		t.Errorf("the least urgent task has priority %d, want 7", got)
	}
}

// Ten claims that find tasks are nine in the lane's order, and one by due time. Claims by due time go on
// from the last one, and begin at the oldest task after a while.
func TestEachTenthClaimGoesByDueTime(t *testing.T) {
	t.Parallel()
	for _, random := range []bool{false, true} {
		s, now := Starts{Random: random}, time.Now()
		head := &Head{Position: Position{TaskID: 1}, LastID: 100, Since: now}
		next := func() Claim {
			c := s.Next(head, 1, true, now)
			if (c.Start.Pivot != nil) != (random && c.Start.Due == nil) || c.Limit != 1 || c.Named {
				t.Fatalf("random %t: claim %+v", random, c)
			}
			return c
		}
		untilDue := func(want Due) Claim {
			t.Helper()
			for range dueTurn - 1 {
				s.Took(next(), Found{}, now) // an empty claim is no turn
				c := next()
				if c.Start.Due != nil {
					t.Fatalf("random %t: a claim by due time comes early", random)
				}
				s.Took(c, founds(1), now)
			}
			c := next()
			if c.Start.Due == nil || *c.Start.Due != want || c.Start.From != nil {
				t.Fatalf("random %t: the tenth claim begins at %+v, want by due time at %+v", random, c.Start, want)
			}
			return c
		}
		s.Took(untilDue(DueStart), founds(3, 9), now)
		s.Took(untilDue(Due{9, 9}), Found{}, now)
		c := untilDue(Due{9, 9})
		s.NotMade(c)
		if c = next(); c.Start.Due == nil {
			t.Errorf("random %t: a claim that was not made was the turn of due times", random)
		}
		now = now.Add(dueRestart)
		untilDue(DueStart)
	}
}

// Where the claims of a lane begin while claims come and go: at its start, then at the watermark, in a
// backlog behind each other.
func TestAClaimBeginsWhereTheClaimsBeforeItTell(t *testing.T) {
	t.Parallel()
	const none = math.MinInt64
	now := time.Now()
	fresh := &Head{Position: Position{TaskID: 1000}, Since: now}
	old := &Head{Position: Position{TaskID: 1000}, Since: now.Add(-time.Hour)}
	waited := &Head{Position: Position{TaskID: 1000}}
	many := func(s *Starts) { // takes the tasks 1 to 999 within a second
		for id := int64(1); id < 1000; id++ {
			s.Took(Claim{Limit: 1}, founds(id), now.Add(time.Duration(id-1000)*time.Millisecond))
			s.turns = 0
		}
	}
	took := func(tasks int) func(*Starts) {
		return func(s *Starts) { s.Took(Claim{}, founds(make([]int64, tasks)...), now) }
	}
	returned := func(at Position) func(*Starts) {
		return func(s *Starts) { many(s); s.Returned(at) }
	}
	forget := func(after time.Duration) func(*Starts) { // the first claim
		return func(s *Starts) { many(s); s.ForgetOld(now.Add(after - 999*time.Millisecond)) }
	}
	wait := func(d time.Duration) func(*Starts) {
		return func(s *Starts) { many(s); waited.Since = now.Add(-d) }
	}
	next := func(limit int, exact bool) func(*Starts) {
		return func(s *Starts) { many(s); s.Next(old, limit, exact, now) }
	}
	random := func(s *Starts) { s.Random = true; many(s) }
	for name, c := range map[string]struct {
		do   func(s *Starts)
		head *Head
		want []int64 // the ids where claims of ten tasks begin, one after the other
	}{
		"of a new lane":              {func(*Starts) {}, old, []int64{none, none}},
		"where too few were claimed": {took(watermarkAfter - 1), fresh, []int64{none}},
		"where just enough were":     {took(watermarkAfter), fresh, []int64{0}},
		"of fresh tasks":             {many, fresh, []int64{961, 961}},
		"of a backlog":               {many, old, []int64{1000, 1010, 1020}},
		"after a claim that was full": {func(s *Starts) {
			many(s)
			s.Took(s.Next(old, 1, true, now), founds(1004), now)
		}, old, []int64{1005, 1015}},
		"after a claim that was short": {func(s *Starts) {
			many(s)
			s.Took(s.Next(old, 10, true, now), founds(1004), now)
		}, old, []int64{961, 971}},
		"after a claim that failed":      {func(s *Starts) { next(10, true)(s); s.Failed() }, old, []int64{961}},
		"where limits may leave it less": {next(10, false), old, []int64{1000}},
		"after a late commit": {func(s *Starts) {
			many(s)
			s.Polled(&Head{Position: Position{TaskID: 7}})
		}, fresh, []int64{7}},
		"after tasks came back": {returned(Position{TaskID: 30}), fresh, []int64{30}},
		"after a claim from before a late commit": {func(s *Starts) {
			many(s)
			before := s.Next(fresh, 1, true, now)
			s.Polled(&Head{Position: Position{TaskID: 7}})
			for range 9 { // two of them move the watermark
				now = now.Add(time.Second)
				s.Took(before, founds(1100), now)
			}
			s.turns = 0
		}, fresh, []int64{7}},
		"after a task above it":         {returned(Position{TaskID: 5000}), fresh, []int64{961}},
		"after a task of another class": {returned(Position{0, 3, 5}), fresh, []int64{961}},
		"after a poll without a head":   {func(s *Starts) { many(s); s.Polled(nil) }, fresh, []int64{961}},
		"of almost a backlog":           {wait(watermarkBacklog), waited, []int64{961}},
		"of just a backlog":             {wait(watermarkBacklog + 1), waited, []int64{1000}},
		"ten seconds after the first":   {forget(watermarkFor), fresh, []int64{961}},
		"later than that":               {forget(watermarkFor + 1), fresh, []int64{none}},
		"after a head above, in random order": {func(s *Starts) {
			random(s)
			s.Polled(&Head{Position: Position{TaskID: 5000}})
		}, fresh, []int64{5000}},
		"of another class": {many, &Head{Position: Position{0, 1, 3}, Since: now}, []int64{3}},
		"in random order":  {random, old, []int64{none, none}},
	} {
		var s Starts
		c.do(&s)
		fresh.Since = now
		for i, want := range c.want {
			got := int64(none)
			if claim := s.Next(c.head, 10, true, now); claim.Start.From != nil {
				got = claim.Start.From.TaskID
			}
			if got != want {
				t.Errorf("%s: claim %d begins at %d, want %d", name, i+1, got, want)
			}
		}
	}
}

// Any role can send a wake-up, so its id is not relied on.
func TestAClaimThatAWakeUpNamesTakesTheClassFromItsStart(t *testing.T) {
	t.Parallel()
	s, class := Starts{Random: true, turns: dueTurn}, Class{Priority: -3}
	if c := s.Named(class, 5, true, time.Now()); !c.Named || c.Limit != 5 || c.Start != (Start{}) {
		t.Errorf("it begins at %+v, want the start of the lane", c.Start)
	}
	s.Took(Claim{}, founds(make([]int64, watermarkAfter)...), time.Now())
	if c := s.Named(class, 5, true, time.Now()); c.Start.From == nil || *c.Start.From != class.Start() {
		t.Errorf("with a watermark of another class it begins at %+v, want %+v", c.Start.From, class.Start())
	}
}

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
