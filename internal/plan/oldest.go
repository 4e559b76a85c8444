package plan

import (
	"cmp"
	"math"
	"time"
)

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

// oldestFor is how long claims by due time go on from the last one.
const oldestFor = 5 * time.Second

// Oldest is where the claims of one lane by due time begin: at the last task that one took, as dead
// entries and locked tasks are before it. Every few seconds they begin at the oldest task, to find
// those that were committed late or came back.
type Oldest struct {
	last  Due
	since time.Time
}

// Begin is where a claim by due time begins.
func (o *Oldest) Begin(now time.Time) Due {
	if now.Sub(o.since) >= oldestFor {
		o.last, o.since = DueStart, now
	}
	return o.last
}

// Note notes the last task that a claim by due time took.
func (o *Oldest) Note(last Due) { o.last = last }
