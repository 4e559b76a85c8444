package plan

import (
	"cmp"
	"math"
	"time"
)

// Start is where a claim begins, and in which order it takes tasks. The zero Start takes the first
// tasks of the lane.
type Start struct {
	From  *Position // in the lane's order, the tasks from here on; nil: all tasks
	Pivot *Position // in random order, the tasks from here on first, none less urgent than it
	Due   *Due      // in the order of due times, the tasks from here on; nil: in the lane's order
}

// Place is where a claim looks for tasks: from a position on, or from a due time on.
type Place struct {
	From Position
	Most int    // the least urgent priority
	Due  *int64 // the due time, in microseconds since 1970; From has only the id then
}

// Places are the places of the claim, in their order.
func (s Start) Places() (out []Place) {
	if s.Due != nil {
		return []Place{{From: Position{TaskID: s.Due.TaskID}, Most: math.MaxInt16, Due: &s.Due.RunAt}}
	}
	if s.Pivot != nil {
		out = append(out, Place{From: *s.Pivot, Most: s.Pivot.Priority})
	}
	if s.From == nil {
		return append(out, Place{From: LaneStart, Most: math.MaxInt16})
	}
	return append(out, Place{From: *s.From, Most: math.MaxInt16})
}

// Due is a place in the order of due times, whether a task has it or not.
type Due struct {
	RunAt  int64 // in microseconds since 1970
	TaskID int64
}

// Compare is by due time, then by id.
func (d Due) Compare(e Due) int {
	return cmp.Or(cmp.Compare(d.RunAt, e.RunAt), cmp.Compare(d.TaskID, e.TaskID))
}

// DueStart is before all tasks: PostgreSQL's first moment.
var DueStart = Due{-210866803200000000, math.MinInt64}

// Claim is a claim of up to Limit tasks of a lane.
type Claim struct {
	Start Start
	Limit int
	Named bool // only a wake-up asked for it, which any role can send: its failure means nothing
	Began time.Time

	tenth     bool // it takes the tasks that have been due longest, and says nothing of the lane's order
	movedBack int  // of the lane's watermarks, when it began
}

// Found is the result of a claim.
type Found struct {
	Tasks, Bytes int // of the payloads
	classes      []classFound
	lastDue      Due
}

// classFound is what a claim took of one class.
type classFound struct {
	last  Position
	tasks int
}

// Add notes a task that the claim took.
func (f *Found) Add(at Position, runAt int64, bytes int) {
	if due := (Due{runAt, at.TaskID}); f.Tasks == 0 || due.Compare(f.lastDue) > 0 {
		f.lastDue = due
	}
	f.Tasks, f.Bytes = f.Tasks+1, f.Bytes+bytes
	for i := len(f.classes) - 1; i >= 0; i-- {
		if c := &f.classes[i]; c.last.Class() == at.Class() {
			c.last, c.tasks = later(c.last, at), c.tasks+1
			return
		}
	}
	f.classes = append(f.classes, classFound{at, 1})
}

// leastUrgent is the greatest priority of the tasks.
func (f *Found) leastUrgent() int {
	p := math.MinInt16
	for _, c := range f.classes {
		p = max(p, c.last.Priority)
	}
	return p
}
