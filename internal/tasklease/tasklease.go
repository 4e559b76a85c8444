// Package tasklease gives a task the lease that it is run under. Task.Complete and Task.Extend call it.
package tasklease

import (
	"context"
	"database/sql"
	"time"
)

// Lease is the hold on one task. Implementations are safe for concurrent use.
type Lease interface {
	// Complete runs fn in a transaction that finishes the task when it commits. Task.Complete of
	// package outbox has the contract.
	Complete(ctx context.Context, fn func(*sql.Tx) error) error
	// Extend lets the run go on for d from now.
	Extend(ctx context.Context, d time.Duration) error
}

// Of returns where a task, a *outbox.Task of any payload, has its lease: nil without one. Package
// outbox sets it.
var Of func(task any) *Lease
