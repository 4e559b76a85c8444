package outbox

import (
	"context"
	"database/sql"
	"time"
)

// Task is what a handler gets. P is the type that the payload was decoded into.
type Task[P any] struct {
	// ID is the task's identity for life: through retries, lost runs and the dead letters. It
	// is the idempotency key to send with calls that leave the database.
	ID      int64
	Type    string
	Payload P
	Headers map[string]string

	// Attempt is 1 in the first call. Runs that died with their process count.
	Attempt     int
	MaxAttempts int
	// Priority is the task's own; the handler's base priority is not in it.
	Priority  int
	RunAt     time.Time
	CreatedAt time.Time
	// LastError is the text of the latest failure, at most 4 kB; "" before the first.
	LastError string

	// Lease is set by the relay for Leased handlers, and by tests that call a handler directly.
	Lease Lease
}

// Lease is a relay's hold on one task. Implementations are safe for concurrent use.
type Lease interface {
	// Complete runs fn in a transaction that finishes the task when it commits.
	Complete(ctx context.Context, fn func(*sql.Tx) error) error
}

// Complete finishes a leased task together with fn's writes: one transaction locks the task's row by
// its lease token, runs fn, deletes the task and commits. So what fn writes is committed exactly
// once, even if the handler ran twice.
//
// It returns ErrLeaseLost, with nothing written, if the lease was lost; fn's error, with nothing
// written; or ErrCommitUnknown. After a nil error the handler's own result no longer matters, and
// further calls return ErrLeaseLost. After ErrCommitUnknown return an error: the relay then looks
// whether the task is still there. fn must not commit or roll back tx; in it a lock is waited for 10 s
// at most, a statement may take 30 s, and 60 s may pass between two.
func (t *Task[P]) Complete(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if t.Lease == nil {
		return ErrNotLeased
	}
	return t.Lease.Complete(ctx, fn)
}
