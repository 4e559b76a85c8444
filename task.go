package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/key"
	"github.com/txoutbox/outbox/internal/taskrun"
)

// MaxTimeout is the longest Timeout of a task, and the longest that Task.Extend takes.
const MaxTimeout = 24 * 24 * time.Hour

// Task is a task for its handler. P is the type of the decoded payload.
type Task[P any] struct {
	// ID stays the same through retries, lost runs and a redrive. Other databases and schemas have
	// tasks with the same ID; see Key.
	ID int64
	// DatabaseID is the id of the outbox: a UUID that Migrate makes, and `outbox adopt` replaces in a
	// copy. It is a part of Key.
	DatabaseID string

	Type    string
	Payload P
	// Headers are those of outbox.Headers and AddHeaders; nil without any.
	Headers map[string]string

	// Attempt is 1 in the first call. A run that died with its process counts; that of a Tx or
	// Batch handler up to 13 s later, once its loss is known. Lost connections do not count.
	Attempt int
	// MaxAttempts is the limit that holds: the task's own, or else its handler's.
	MaxAttempts int
	// Priority is the task's own; the handler's base priority is not in it.
	Priority int
	// OrderingKey is that of OrderedBy; "" without one.
	OrderingKey string
	// RunAt is when this attempt was due, by PostgreSQL's clock.
	RunAt time.Time
	// ExpiresAt is that of outbox.ExpiresAt or ExpiresAfter; nil without one, which keeps other tasks
	// small. A retry may have it behind itself.
	ExpiresAt *time.Time
	// CreatedAt is when the transaction that enqueued the task began, by PostgreSQL's clock: now()
	// in SQL. The task became visible when that transaction committed. Retries, iterations and a
	// redrive keep it.
	CreatedAt time.Time
	// Iterations is how often the handler has returned handlers.RunAgain for this task; 0 before
	// the first time. Attempt, LastError and Payload are those of the present iteration.
	Iterations int
	// LastError is the text of the latest failure, at most 4 kB; "" before the first.
	LastError string
	// FailedAttempts are the attempts that failed or were lost, the oldest first: at most the last
	// 20, with the first of them. Those of earlier iterations, and of a payload that was replaced, are
	// not among them.
	FailedAttempts []FailedAttempt

	run taskrun.Run // nil: no relay runs it
}

func init() {
	taskrun.Of = func(task any) *taskrun.Run { return task.(interface{ runOf() *taskrun.Run }).runOf() }
}

func (t *Task[P]) runOf() *taskrun.Run { return &t.run }

// Key is the idempotency key to send with calls that leave the database: a UUID that no other task
// has, in any database. It is the same in every attempt and after a redrive. In a copy of the
// database it is another one once `outbox adopt` has run there. Iterations share it
// (handlers.RunAgain).
//
// It is of version 8 (RFC 9562): the first half of DatabaseID, then the ID in hexadecimal digits.
// Task 42 of 0b5a3c1e-77d2-4f60-… has the key 0b5a3c1e-77d2-8f60-8000-00000000002a.
func (t *Task[P]) Key() string { return key.Of(t.DatabaseID, t.ID) }

// FailedAttempt is an attempt that failed or was lost.
type FailedAttempt struct {
	Attempt int // 1 is the first
	// At is when the failure was recorded, by PostgreSQL's clock. A Tx or Batch run that was lost
	// has the time of its start.
	At       time.Time
	RelayID  string        // of the relay that ran it
	Duration time.Duration // of the handler's call; 0 if it is not known
	// Error is the first 1 kB of the error. It is "lost" if the process died, and "lease_lost" if
	// the lease ran out.
	Error string
}

// Kind is the kind of a handler: it says how tasks of its type are claimed and run.
type Kind string

// The kinds of handlers. Package handlers registers each by the function of its name.
const (
	KindTx     Kind = "tx"     // in the transaction that removes the task
	KindBatch  Kind = "batch"  // several tasks of the type in one such transaction
	KindLeased Kind = "leased" // under a lease, without a transaction
)

// Reason is why a task is a dead letter.
type Reason string

// The reasons for which a task is a dead letter.
const (
	// ReasonAttempts: all attempts were used.
	ReasonAttempts Reason = "attempts"
	// ReasonHandler: the handler returned handlers.Dead, its backoff said stop, or
	// handlers.MaxElapsed has passed.
	ReasonHandler Reason = "handler"
	// ReasonLostConnections: ten runs lost their connection to PostgreSQL.
	ReasonLostConnections Reason = "lost_connections"
	// ReasonCommitted: the handler committed the relay's transaction and then failed.
	ReasonCommitted Reason = "committed"
	// ReasonExpired: it had not begun by the time of ExpiresAt or ExpiresAfter.
	ReasonExpired Reason = "expired"
)

// CatchUp is what becomes of the firings that a schedule missed. The zero value means CatchUpOnce.
type CatchUp string

// The values of CatchUp, for relay.Schedule and admin.Schedule.
const (
	// CatchUpOnce enqueues one task, for the first of the missed firings. Two firings that are due
	// at once count as missed, so a very frequent schedule loses some under load.
	CatchUpOnce CatchUp = "once"
	// CatchUpAll enqueues a task for each of them.
	CatchUpAll CatchUp = "all"
)

// Complete finishes a leased task together with fn's writes: one transaction deletes the task's row
// by its lease token, runs fn and commits. So the writes of fn are committed exactly once, even if
// the handler ran twice.
//
// The rules for fn are those of a Tx handler: it must not commit or roll back tx. In it a lock is
// waited for 10 s at most, a statement may take 30 s, and 60 s may pass between two. Complete
// returns:
//   - nil: fn's writes are committed and the task is gone. The handler's own result no longer
//     matters, and further calls return ErrLeaseLost.
//   - fn's error, or an error for a fault that fn hid by returning nil: a failed statement, rows
//     left open, a deferred constraint that is violated, a transaction that fn rolled back. Nothing
//     is written and the lease is held, so the handler's result decides: an error is a failed
//     attempt, nil removes the task without fn's writes. Complete can be called again.
//   - ErrLeaseLost, with nothing written: another run of the task decides.
//   - ErrCommitUnknown: return an error; the relay then looks whether the task is still there.
//   - ErrNotLeased: no Leased handler holds the task.
//   - any other error, which is ctx's or the database's, with nothing written.
//
// If fn commits tx itself, its writes and the removal of the task stand. Complete returns nil if fn
// did, and the relay logs it. If fn then failed or panicked, the relay writes a dead letter with the
// reason committed. If PostgreSQL does not take it, the task is only in the relay's log. The
// handler's own result no longer matters, and a panic of fn goes on in the handler.
//
// If fn returns handlers.RunAgain or handlers.RunAgainWith, its writes are committed and the task,
// instead of being deleted, runs again: each iteration's writes are committed exactly once.
// Complete returns nil then. The same returned by the handler after Complete returned nil has no
// effect, as the task is gone; the relay logs it.
func (t *Task[P]) Complete(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if t.run == nil {
		return ErrNotLeased
	}
	return t.run.Complete(ctx, fn)
}

// Extend lets the run of a leased task go on for d from now, beyond its timeout or, for a type
// without heartbeats, its lease: it moves the end of the lease in the task's row, if the lease is
// still held, and then that of the handler's context. It never shortens either. For a run without a
// time limit it only makes sure that the lease is held. Contexts that the handler derived move as
// well, unless they have a deadline of their own. Deadline of the context tells the end as it
// stands.
//
// d is between 1 ms and MaxTimeout, else the error is ErrInvalidOption. Extend returns ErrNotLeased
// if no Leased handler holds the task, ErrLeaseLost if the lease was lost, and what ended the
// handler's context (context.Cause) if that has ended: it does not come back. After any other
// error, which is ctx's, the database's, or that a Complete is under way, the run ends as before or
// later, and Extend can be called again.
func (t *Task[P]) Extend(ctx context.Context, d time.Duration) error {
	if t.run == nil {
		return ErrNotLeased
	}
	if d < time.Millisecond || d > MaxTimeout {
		return fmt.Errorf("%w: Extend(%v): must be between 1ms and %v", ErrInvalidOption, d, MaxTimeout)
	}
	return t.run.Extend(ctx, d)
}

// MaxResult is the most that a result of [Task.SetResult] may have, in bytes of JSON.
const MaxResult = 64 << 10

const maxProgressMessage = 200 // bytes

// SetProgress shows in the dashboard and the command line how far the run is: a fraction from 0 to 1, and a
// message like "400 of 1,000", of at most 200 bytes of valid UTF-8 without NUL. Each call replaces the one before.
// It sends nothing itself: the relay writes what its tasks have shown, together and at most once a second, of at
// most 1,000 tasks at once. When the handler has returned, the progress is gone.
//
// It returns ErrInvalidOption for another fraction or message, the cause of ctx's end, and ErrNotRunning if no
// relay runs the task any more. It is safe for concurrent use. A run of outboxtest shows its progress to nobody.
func (t *Task[P]) SetProgress(ctx context.Context, fraction float64, message string) error {
	switch {
	case !(fraction >= 0 && fraction <= 1): // NaN is neither
		return fmt.Errorf("%w: SetProgress(%v): the fraction must be between 0 and 1", ErrInvalidOption, fraction)
	case len(message) > maxProgressMessage || !storable(message):
		return fmt.Errorf("%w: SetProgress: the message has %d bytes: use at most %d of valid UTF-8 without NUL",
			ErrInvalidOption, len(message), maxProgressMessage)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case t.run == nil:
		return fmt.Errorf("%w: task %d", ErrNotRunning, t.ID)
	}
	return t.run.SetProgress(t.ID, fraction, message)
}

// SetResult makes v, as encoding/json encodes it, the result of the task, which [Result] reads. It is written
// in the transaction that ends the task, if this run finishes it: Complete counts, and a failed attempt has no
// result. The last call counts; nil, or what encodes as null, is no result. It is at most [MaxResult] bytes.
//
// It returns ErrNoHistory if the handler is registered without handlers.Retention, as the result is a part of the
// history; ErrInvalidPayload and ErrPayloadTooLarge as [Enqueue] does; and ErrNotRunning if no relay runs the task
// any more. It is safe for concurrent use.
func (t *Task[P]) SetResult(v any) error {
	result, err := new(lines).add(v, MaxResult)
	if err != nil {
		return fmt.Errorf("the result of task %d: %w", t.ID, err)
	}
	if t.run == nil {
		return fmt.Errorf("%w: task %d", ErrNotRunning, t.ID)
	}
	if result == "null" {
		result = ""
	}
	return t.run.SetResult(t.ID, result)
}
