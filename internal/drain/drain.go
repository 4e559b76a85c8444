// Package drain is how outboxtest runs tasks by the relay's own rules, statements and transitions: package relay fills
// NewStepper in.
package drain

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
)

// Outcome is what became of a task by one run.
type Outcome string

// The outcomes of a run.
const (
	Done      Outcome = "done"
	Discarded Outcome = "discarded" // done all the same
	Failed    Outcome = "failed"    // scheduled again
	Snoozed   Outcome = "snoozed"   // scheduled again, and no attempt counted
	Again     Outcome = "again"     // scheduled again, for its next iteration
	Dead      Outcome = "dead"      // in the dead letters
)

// Run is one run of one task.
type Run struct {
	TaskID  int64
	Type    string
	Attempt int // 1 in the first run
	Outcome Outcome
	Err     error         // of Discarded, Failed and Dead
	Wait    time.Duration // until it is due again; of Failed, Snoozed and Again
}

// Database is where the tasks are: a pool, or an open transaction of the caller's.
type Database interface {
	// InTx calls f in a transaction, or under a savepoint of the open one. It keeps what f did, with the settings of
	// the open transaction as they were before, or undoes all of it after an error of f, which it returns, a panic or
	// a Goexit.
	InTx(ctx context.Context, f func(tx *sql.Tx) error) error
	// Constraints checks deferred constraints as a commit would. It changes nothing else in an open transaction.
	Constraints(ctx context.Context, tx *sql.Tx) error
}

// Stepper runs tasks, one claim at a time.
type Stepper interface {
	// Step runs the next ready task, by priority, attempt and id, or the batch that it heads. No runs: none is ready.
	// An error is the database's, or a Misuse.
	Step(ctx context.Context) ([]Run, error)
}

// Misuse is a handler's fault that a relay survives on a connection of its own, and a test should hear of.
type Misuse struct {
	Type   string
	TaskID int64
	Text   string
	Err    error // of the handler or the database; may be nil
}

func (m *Misuse) Error() string {
	if m.Err == nil {
		return m.Text
	}
	return m.Text + ": " + m.Err.Error()
}

func (m *Misuse) Unwrap() error { return m.Err }

// Set by package relay.
var (
	NewStepper func(in Database, registered []*handler.Handler, schema string, log *slog.Logger) Stepper
	// ErrGoexit is the error of a handler that ended its goroutine, say by t.FailNow.
	ErrGoexit error
)
