package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// simulation is a Dispatcher before a database that finds, fails and refuses as chance has it.
type simulation struct {
	*testing.T
	rand    *rand.Rand
	d       *Dispatcher
	now     Moment
	failing int       // of 100 answers
	waiting [][]int64 // tasks by lane
	lastID  int64

	poll      *Poll    // under way, as are
	promotion *Promote // this
	claims    []*simulatedClaim
	runs      []int // of leased tasks, by lane
	wait      time.Duration
	done      bool
}

type simulatedClaim struct {
	StartClaim
	leased, told bool
	found        []int64
}

var simulatedTypes = []Type{
	{Name: "TX", Kind: "tx", ClaimSize: 1},
	{Name: "GROUP", Kind: "tx", ClaimSize: 8, MaxRunningPerRelay: 1},
	{Name: "BATCH", Kind: "batch", ClaimSize: 50, MaxRunning: 2},
	{Name: "LEASED", Kind: "leased", Rated: true},
	{Name: "FEW", Kind: "leased", MaxRunningPerRelay: 3},
}

// Whatever happens, slots and claims are counted as they are, no task is left, and the dispatcher ends
// when nothing is under way.
func TestSlotsAndClaimsAreCountedWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		s := &simulation{T: t, rand: rand.New(rand.NewPCG(seed, 0)), failing: 15,
			waiting: make([][]int64, len(simulatedTypes)), runs: make([]int, len(simulatedTypes))}
		s.d = New(Params{Types: simulatedTypes, Workers: 1 + s.rand.IntN(12), PollInterval: time.Second,
			StatementTimeout: 10 * time.Second, Random: seed%3 == 0})
		s.now = Moment{Time: time.Now(), Listening: seed%2 == 0, Postponed: func(time.Time) bool { return false }}
		s.step(Tick{})
		for range 300 {
			s.chance()
		}
		s.failing = 0
		s.drain()
		s.arrive()
		s.step(Woken{})
		s.now.Stopping = true
		for s.step(Tick{}); s.answer(); {
		}
		if !s.done {
			t.Fatalf("seed %d: nothing is under way, and the dispatcher is not done", seed)
		}
	}
}

func (s *simulation) one(of int) bool { return s.rand.IntN(of) == 0 }

func (s *simulation) failure() (f Failure) {
	if s.rand.IntN(100) < s.failing {
		f = Failure{Err: errFake, NoConnection: s.one(3)}
	}
	return f
}

// chance lets something happen.
func (s *simulation) chance() {
	switch s.rand.IntN(10) {
	case 0:
		lane := s.arrive()
		named := fmt.Sprintf("0 %d %s", s.lastID, simulatedTypes[lane].Name)
		s.step(Woken{[]string{"", named}[s.rand.IntN(2)]})
	case 1:
		s.step(Withdrawn{})
	case 2, 3:
		s.now.Time = s.now.Time.Add(time.Duration(s.rand.Int64N(int64(min(s.wait, time.Second)) + 1)))
		s.step(Tick{})
	default:
		s.answer()
	}
}

// arrive enqueues some tasks of a lane.
func (s *simulation) arrive() (lane int) {
	lane = s.rand.IntN(len(s.waiting))
	for range 1 + s.rand.IntN(40) {
		s.lastID++
		s.waiting[lane] = append(s.waiting[lane], s.lastID)
	}
	return lane
}

// drain answers without failures until no task is left.
func (s *simulation) drain() {
	for end := s.now.Time.Add(time.Hour); ; {
		left := 0
		for _, tasks := range s.waiting {
			left += len(tasks)
		}
		switch {
		case s.now.Time.After(end):
			s.Fatalf("after an hour %d tasks are left, with %d slots free", left, s.d.free)
		case s.answer():
		case left == 0:
			return
		default:
			s.now.Time = s.now.Time.Add(max(s.wait, time.Millisecond))
			s.step(Tick{})
		}
	}
}

// answer ends a part of what is under way, and reports whether there was something.
func (s *simulation) answer() bool {
	var answers []func()
	if s.poll != nil {
		answers = append(answers, s.polled)
	}
	if s.promotion != nil {
		answers = append(answers, func() {
			p := *s.promotion
			s.promotion = nil
			s.step(Promoted{Promote: p, Failure: s.failure()})
		})
	}
	for i, c := range s.claims {
		answers = append(answers, func() {
			switch {
			case c.told || s.failing > 0 && s.one(3):
				s.claims = append(s.claims[:i:i], s.claims[i+1:]...)
				if c.leased {
					s.leaseEnds(c)
				} else {
					s.txEnds(c)
				}
			default:
				s.take(c)
				c.told = true
				s.step(ClaimFound{Lane: c.Lane, Claim: c.Claim, Found: founds(c.found...)})
			}
		})
	}
	for lane, n := range s.runs {
		if n > 0 {
			answers = append(answers, func() {
				n := 1 + s.rand.IntN(n)
				s.runs[lane] -= n
				s.step(LeasesEnded{Lanes: []LaneEnds{{Lane: lane, Runs: n}}, Keyed: s.one(4)})
			})
		}
	}
	if len(answers) == 0 {
		return false
	}
	s.now.Time = s.now.Time.Add(time.Millisecond)
	answers[s.rand.IntN(len(answers))]()
	return true
}

func (s *simulation) polled() {
	p := *s.poll
	s.poll = nil
	e := Polled{Poll: p, Failure: s.failure()}
	e.Result = PollResult{Heads: make([]*Head, len(s.waiting)), Took: time.Millisecond}
	for lane, tasks := range s.waiting {
		if len(tasks) > 0 {
			e.Result.Heads[lane] = &Head{Position: Position{TaskID: tasks[0]}, Since: s.now.Time}
		}
	}
	s.step(e)
}

// take has a claim find tasks, some of which another relay may have locked.
func (s *simulation) take(c *simulatedClaim) {
	n := min(c.Claim.Limit, len(s.waiting[c.Lane]))
	if s.failing > 0 && s.one(5) {
		n = s.rand.IntN(n + 1)
	}
	c.found, s.waiting[c.Lane] = s.waiting[c.Lane][:n:n], s.waiting[c.Lane][n:]
}

// notMade is why a claim was not made, if it was not.
func (s *simulation) notMade(c *simulatedClaim) (why NotMade, wait time.Duration, f Failure) {
	if f = s.failure(); f.Err != nil || s.failing == 0 {
		return Made, 0, f
	}
	why = []NotMade{Made, Made, SetAside, NoSlot, NoToken}[s.rand.IntN(5)]
	return why, time.Duration(s.rand.IntN(300)) * time.Millisecond, f
}

func (s *simulation) txEnds(c *simulatedClaim) {
	e := &ClaimEnded{Lane: c.Lane, Slots: 1, Claim: c.Claim, Told: c.told, ClaimSize: simulatedTypes[c.Lane].ClaimSize}
	if c.told {
		if e.Ran, e.Failure = len(c.found) > 0, s.failure(); e.Failure.Err != nil { // all is rolled back
			s.waiting[c.Lane] = append(c.found, s.waiting[c.Lane]...)
		}
	} else if e.NotMade, e.Wait, e.Failure = s.notMade(c); e.NotMade == Made && e.Failure.Err == nil {
		e.Failure.Err = errFake
	}
	s.step(e)
}

func (s *simulation) leaseEnds(c *simulatedClaim) {
	e := &ClaimEnded{Lane: c.Lane, Claim: c.Claim, Slots: c.Slots, Told: c.told, Allowed: c.Claim.Limit}
	if e.NotMade, e.Wait, e.Failure = s.notMade(c); c.told {
		e.NotMade, e.Wait = Made, 0
	} else if e.NotMade == Made && e.Failure.Err == nil {
		if s.failing > 0 && s.one(4) { // other relays have the slots of the type
			c.Claim.Limit = 1 + s.rand.IntN(c.Claim.Limit)
			e.Allowed = c.Claim.Limit
		}
		s.take(c)
	}
	if e.Failure.Err != nil {
		s.waiting[c.Lane], c.found = append(c.found, s.waiting[c.Lane]...), nil
	}
	s.runs[c.Lane] += len(c.found)
	e.Found = founds(c.found...)
	s.step(e)
}

// step takes a step, and compares what the dispatcher counts with what is under way.
func (s *simulation) step(e Event) {
	s.Helper()
	for _, a := range s.d.Step(e, s.now) {
		switch a := a.(type) {
		case Poll:
			if s.poll != nil {
				s.Fatal("two polls at once")
			}
			s.poll = &a
		case Promote:
			s.promotion = &a
		case StartClaim:
			s.claims = append(s.claims, &simulatedClaim{StartClaim: a, leased: simulatedTypes[a.Lane].Kind == leasedKind})
		case Wait:
			s.wait = a.For
		case Done:
			s.done = true
		}
	}
	type counts struct{ running, leasing, looking int }
	lanes, claims, slots := make([]counts, len(simulatedTypes)), 0, 0
	for lane, n := range s.runs {
		lanes[lane].running += n
	}
	for _, c := range s.claims {
		l := &lanes[c.Lane]
		l.running += c.Slots
		if c.leased {
			l.leasing++
		}
		if !c.told {
			l.looking++
		}
		if c.leased || !c.told {
			claims++
		}
	}
	for i, c := range s.d.lanes.all {
		slots += lanes[i].running
		if got := (counts{c.running, c.claims.leasing, c.claims.looking}); got != lanes[i] {
			s.Fatalf("after %T, %s: counted %+v, want %+v", e, c.of.Name, got, lanes[i])
		}
		if most := c.of.MaxRunningPerRelay; most > 0 && c.running > most {
			s.Fatalf("%s: %d run, at most %d may", c.of.Name, c.running, most)
		}
	}
	if s.poll != nil {
		slots++
	}
	if s.promotion != nil {
		slots++
	}
	if got := s.d.params.Workers - s.d.free - s.d.conns.withheld; got != slots || s.d.claims != claims {
		s.Fatalf("after %T: %d slots and %d claims are counted, want %d and %d", e, got, s.d.claims, slots, claims)
	}
	if s.done && slots > 0 {
		s.Fatalf("after %T: done, with %d slots at work", e, slots)
	}
}
