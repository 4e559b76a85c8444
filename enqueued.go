package outbox

import "fmt"

// Enqueued is the result of one Enqueue. The task exists once the transaction has committed.
type Enqueued struct {
	// TaskID is the new task, or the task that has the unique key if none was created.
	TaskID int64
	// Outcome is Created unless a unique key was taken; see [Unique].
	Outcome Outcome
}

// Outcome is what came of an Enqueue with a unique key. The zero value is Created.
type Outcome int

// The outcomes.
const (
	Created Outcome = iota // a new task
	Updated                // the waiting task that has the key was replaced or rescheduled
	Skipped                // the task that has the key stays as it is
)

// outcomes are the outcomes in SQL.
var outcomes = []string{Created: "created", Updated: "updated", Skipped: "skipped"}

// String is created, updated or skipped.
func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomes) {
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
	return outcomes[o]
}
