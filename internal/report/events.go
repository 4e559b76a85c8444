// Package report tells how runs end: to the log, to observers and to the dispatcher when the next
// task is due.
package report

import (
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
)

// End is the end of one run: of one task, also in a group, or of the tasks of one claim of a Batch
// handler.
type End struct {
	Type    string
	Kind    outbox.Kind
	Called  time.Time // zero: the handler was not called
	Handled time.Duration
	Tasks   []TaskEnd
}

// TaskEnd is what became of one task in a run.
type TaskEnd struct {
	ID      int64
	Attempt int
	Outcome decide.Outcome
	Reason  outbox.Reason // of Dead
	Err     error         // of the handler, or the relay's; nil if it is done
	Waited  time.Duration // for how long the task had been due when the claim had it
}

// DeadLetter is a task that became a dead letter.
type DeadLetter struct {
	ID          int64
	Key         string
	Type        string
	Attempt     int
	MaxAttempts int
	Reason      outbox.Reason
	LastError   string
	Err         error
}

// Events hears of claims and runs. Its methods may be called at the same time.
type Events interface {
	// Observed reports whether somebody hears of Claimed and Ended, which are not called else.
	Observed() bool
	Claimed(h *handler.Handler, tasks int, began, had time.Time)
	Ended(End)
	// Died hears of a dead letter whose COMMIT is confirmed.
	Died(DeadLetter)
	// Waited is for how long a task that was due at runAt, in µs since 1970 by PostgreSQL's clock,
	// had been so at a time of the process's clock.
	Waited(runAt int64, at time.Time) time.Duration
}
