package outboxtest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/txoutbox/outbox/relay"
)

// Run is one run of one task in a Drain.
type Run struct {
	ID      int64 // of the task
	Type    string
	Attempt int // 1 in a task's first run
	Outcome relay.Outcome
	// Err is the handler's error, for errors.Is and errors.As, if the task was discarded, throttled,
	// failed or died.
	Err error
}

// String is the run on one line: type, ID, attempt, outcome and error.
func (r Run) String() string {
	s := fmt.Sprintf("%s #%d, attempt %d: %s", r.Type, r.ID, r.Attempt, r.Outcome)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Result is what a Drain did.
type Result struct {
	// Runs are in the order in which they were made. The members of a Batch handler's call are a
	// run each. A call that failed for all of a batch is none: its members run one by one then, as
	// in production.
	Runs []Run
	// Unhandled counts the tasks of types that the registry has no handler for. They were left
	// alone.
	Unhandled map[string]int
}

// Count is the number of runs with the outcome.
func (r *Result) Count(o relay.Outcome) (n int) {
	for _, run := range r.Runs {
		if run.Outcome == o {
			n++
		}
	}
	return n
}

// Err joins the errors of all runs that failed or made a task a dead letter, each with its task;
// nil if there are none. A discarded or throttled task is none of these: see Count.
func (r *Result) Err() error {
	var errs []error
	for _, run := range r.Runs {
		if run.Outcome == relay.OutcomeFailed || run.Outcome == relay.OutcomeDead {
			errs = append(errs, fmt.Errorf("%s #%d, attempt %d: %s: %w", run.Type, run.ID, run.Attempt, run.Outcome, run.Err))
		}
	}
	return errors.Join(errs...)
}

// String has a line for each run, and one for unhandled types.
func (r *Result) String() string {
	lines := make([]string, 0, len(r.Runs)+1)
	for _, run := range r.Runs {
		lines = append(lines, run.String())
	}
	if len(r.Unhandled) > 0 {
		lines = append(lines, "no handler: "+countsText(r.Unhandled))
	}
	return strings.Join(lines, "\n")
}
