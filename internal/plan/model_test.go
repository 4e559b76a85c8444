package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// queued is a task of the model's lane.
type queued struct {
	at       Position
	runAt    int64
	ready    bool // it is committed, and no claim holds it
	seen     bool // a poll read it, or a task before it: claims must not begin behind it
	passed   int  // the look that last passed over it
	firstAt  int  // the look since which it has been due longest, and
	firstDue time.Time
}

func (q *queued) due() Due { return Due{q.runAt, q.at.TaskID} }

// looked is a claim that holds the tasks that it found.
type looked struct {
	claim Claim
	took  []*queued
}

// model is one lane with tasks as PostgreSQL would have them.
type model struct {
	*testing.T
	rand   *rand.Rand
	lane   lane
	now    time.Time
	tasks  []*queued // by id
	claims []looked  // under way
	lastID int64
	looks  int // of claims that found tasks
}

const (
	modelClaims = 4 // at once: each may look after a turn has begun that it is counted in
	modelDue    = dueRestart + time.Second
	modelLooks  = 3 * dueTurn
)

// readyTasks are the ready tasks from a place on, in the place's order.
func (m *model) readyTasks(p Place) []*queued {
	var out []*queued
	for _, q := range m.tasks {
		after := q.at.Compare(p.From) >= 0
		if p.Due != nil {
			after = q.due().Compare(Due{*p.Due, p.From.TaskID}) >= 0
		}
		if q.ready && after && q.at.Priority <= p.Most {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, func(a, b *queued) int {
		if p.Due != nil {
			return a.due().Compare(b.due())
		}
		return a.at.Compare(b.at)
	})
	return out
}

func (m *model) enqueue() {
	m.lastID += 1 + m.rand.Int64N(3)
	q := &queued{at: Position{TaskID: m.lastID}, runAt: m.now.UnixMicro(), ready: m.rand.IntN(10) > 0}
	switch m.rand.IntN(50) {
	case 0, 1:
		q.at.Priority = -3
	case 2:
		q.at.Priority = 4
	case 3:
		q.runAt -= m.rand.Int64N(time.Hour.Microseconds())
	}
	m.tasks = append(m.tasks, q)
}

// poll reads the lane's head, of all tasks or of the spans.
func (m *model) poll(full bool) {
	all := m.readyTasks(Place{From: LaneStart, Most: math.MaxInt16})
	var head *Head
	for _, q := range all {
		if full || covers(m.lane.starts.Spans(), q.at) {
			head = &Head{Position: q.at, Since: time.UnixMicro(q.runAt), LastID: m.lastID}
			break
		}
	}
	m.lane.polled(head, m.now)
	for _, q := range all {
		q.seen = q.seen || m.reached(q.at)
	}
}

// reached reports whether the claims from now on begin before a task, as those under way say as well.
func (m *model) reached(at Position) bool {
	for _, l := range m.claims {
		if slices.ContainsFunc(l.took, func(q *queued) bool { return q.at.Compare(at) > 0 }) {
			return false
		}
	}
	w := m.lane.starts.watermarks.of[at.Class()]
	return covers(m.lane.starts.Spans(), at) && (w == nil || at.Compare(later(w.last, w.next)) >= 0)
}

func covers(spans []Span, at Position) bool {
	return spans == nil || slices.ContainsFunc(spans, func(s Span) bool {
		return at.Compare(s.First) >= 0 && at.Compare(Position{s.Last.Priority, s.Last.Attempt, math.MaxInt64}) <= 0
	})
}

// look begins a claim, which locks tasks.
func (m *model) look(claim Claim) {
	l := looked{claim: claim}
	for _, p := range claim.Start.Places() {
		for _, q := range m.readyTasks(p) {
			if len(l.took) < claim.Limit {
				q.ready, l.took = false, append(l.took, q)
			}
		}
	}
	m.claims = append(m.claims, l)
	if len(l.took) > 0 {
		m.looks++
		m.checkOrder(claim, l.took)
		m.checkOldest()
	}
}

// checkOrder fails if a claim passes over a task that polls have seen, unless it is one of ten claims.
func (m *model) checkOrder(claim Claim, took []*queued) {
	m.Helper()
	last := slices.MaxFunc(took, func(a, b *queued) int { return a.at.Compare(b.at) }).at
	for _, q := range m.tasks {
		before := q.at.Compare(last) < 0
		if m.lane.starts.Random {
			before = q.at.Priority < last.Priority
		}
		if !q.ready || !q.seen {
			continue
		}
		if m.lane.starts.urgent > q.at.Priority {
			m.Fatalf("the lane counts as one of priority %d, and task %d has %d",
				m.lane.starts.urgent, q.at.TaskID, q.at.Priority)
		}
		if before && q.passed > 0 && m.looks-q.passed < dueTurn-modelClaims {
			m.Fatalf("look %d by %+v took a task at %+v, and passed over task %d at %+v, as look %d did",
				m.looks, claim.Start, last, q.at.TaskID, q.at, q.passed)
		}
		if before {
			q.passed = m.looks
		}
	}
}

// checkOldest fails if the task that has been due longest waits for too many claims.
func (m *model) checkOldest() {
	m.Helper()
	var first *queued
	for _, q := range m.tasks {
		if q.ready && (first == nil || q.due().Compare(first.due()) < 0) {
			first = q
		}
	}
	for _, q := range m.tasks {
		if q != first {
			q.firstAt = 0
		} else if q.firstAt == 0 {
			q.firstAt, q.firstDue = m.looks, m.now
		} else if m.now.Sub(q.firstDue) > modelDue && m.looks-q.firstAt > modelLooks {
			m.Fatalf("task %d at %+v is due longest, and waits since %d looks", q.at.TaskID, q.at, m.looks-q.firstAt)
		}
	}
}

// end ends a claim: it fails, or its tasks are done or come back.
func (m *model) end() {
	n := m.rand.IntN(len(m.claims))
	l := m.claims[n]
	m.claims = slices.Delete(m.claims, n, n+1)
	if m.rand.IntN(20) == 0 {
		for _, q := range l.took {
			q.ready, q.seen = true, false
		}
		m.lane.starts.Failed()
		return
	}
	var found Found
	for _, q := range l.took {
		found.Add(q.at, q.runAt, 1)
	}
	m.lane.found(l.claim, found, 10, m.now)
	for _, q := range l.took {
		if m.rand.IntN(20) > 0 {
			m.tasks = slices.DeleteFunc(m.tasks, func(o *queued) bool { return o == q })
			continue
		}
		q.at.Attempt += m.rand.IntN(2)
		q.ready, q.seen = true, false
		m.lane.starts.Returned(q.at)
		if !covers(m.lane.starts.Spans(), q.at) {
			m.Fatalf("task %d came back to %+v, and no poll reads it", q.at.TaskID, q.at)
		}
	}
}

// claim begins a claim, which limits may leave fewer tasks, or none.
func (m *model) claim() {
	limit, exact := 1+m.rand.IntN(10), m.rand.IntN(2) == 0
	var c Claim
	switch {
	case m.lane.head != nil:
		c = m.lane.starts.Next(m.lane.head, limit, exact, m.now)
	case len(m.claims) == 0:
		c = m.lane.starts.Named(Class{}, limit, exact, m.now)
	default:
		return
	}
	if !exact {
		c.Limit = m.rand.IntN(limit + 1)
	}
	if c.Limit == 0 {
		m.lane.starts.NotMade(c)
		return
	}
	m.look(c)
}

func (m *model) step(enqueues int) {
	m.now = m.now.Add(time.Duration(m.rand.Int64N(int64(10 * time.Millisecond))))
	for range enqueues {
		m.enqueue()
	}
	for _, q := range m.tasks { // late commits
		held := slices.ContainsFunc(m.claims, func(l looked) bool { return slices.Contains(l.took, q) })
		if !q.ready && !held && m.rand.IntN(10) == 0 {
			q.ready = true
		}
	}
	if m.rand.IntN(5) == 0 {
		m.poll(m.rand.IntN(20) == 0)
	}
	if m.rand.IntN(1000) == 0 {
		m.lane.starts.ForgetOld(m.now)
	}
	if len(m.claims) < modelClaims {
		m.claim()
	}
	if len(m.claims) == modelClaims || len(m.claims) > 0 && m.rand.IntN(3) == 0 {
		m.end()
	}
}

// Whatever comes, comes back, commits late or is claimed at once: of ten claims nine pass over no task
// that a poll has seen, the one that has been due longest is claimed soon, and none is left.
func TestNoTaskOfALaneIsPassedOver(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := &model{T: t, rand: rand.New(rand.NewPCG(seed, 0)), now: time.Unix(1e9, 0)}
			m.lane.starts.Random = seed%2 == 1
			for n := range 2000 {
				m.step(m.rand.IntN(5 + n/500%2*5))
			}
			for n := 0; len(m.tasks) > 0; n++ {
				if n == 5000 {
					t.Fatalf("%d tasks are left", len(m.tasks))
				}
				m.step(0)
			}
		})
	}
}
