// Package taskrun gives a task the run that it is in. The methods of outbox.Task call it.
package taskrun

import (
	"context"
	"database/sql"
	"time"
)

// Run is the run of one task, or of the tasks of one claim. Implementations are safe for concurrent use.
type Run interface {
	// Complete runs fn in a transaction that finishes the task when it commits. Task.Complete of
	// package outbox has the contract.
	Complete(ctx context.Context, fn func(*sql.Tx) error) error
	// Extend lets the run go on for d from now.
	Extend(ctx context.Context, d time.Duration) error
	// SetProgress shows how far the run of a task is: a checked fraction and message.
	SetProgress(taskID int64, fraction float64, message string) error
	// SetResult keeps checked JSON as the result of a task, if the run finishes it; "" for none.
	SetResult(taskID int64, result string) error
}

// Of returns where a task, a *outbox.Task of any payload, has its run: nil without one. Package
// outbox sets it.
var Of func(task any) *Run
