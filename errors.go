package outbox

import (
	"errors"

	"github.com/txoutbox/outbox/internal/intx"
	"github.com/txoutbox/outbox/internal/txcheck"
)

// Errors of Enqueue, EnqueueMany and TaskType.Enqueue. They are returned before anything is
// written, so the caller's transaction stays usable. No SQL is sent either, except on a *sql.Conn:
// two statements ask whether a transaction is open.
var (
	// ErrNoTransaction: the transaction is nil, or it is a *sql.DB, a *sqlx.DB or a *sql.Conn
	// without BEGIN, through which the task would not commit together with the caller's rows.
	ErrNoTransaction = txcheck.ErrNoTransaction
	// ErrInvalidType: a task type is empty, longer than 128 bytes, not UTF-8, or holds a
	// character that does not print.
	ErrInvalidType = errors.New("outbox: invalid task type")
	// ErrInvalidPayload: the payload cannot be stored as jsonb: it is not valid JSON or UTF-8,
	// holds a NUL or half a surrogate pair, or a number or a nesting that PostgreSQL refuses.
	ErrInvalidPayload = errors.New("outbox: invalid payload")
	// ErrPayloadTooLarge: the encoded payload is over the limit; see [MaxPayload].
	ErrPayloadTooLarge = errors.New("outbox: payload too large")
	// ErrInvalidOption: an option is nil or its value out of range; the error names it. Other
	// functions, and packages admin, doctor and inbox, return it for their options and arguments.
	ErrInvalidOption = errors.New("outbox: invalid option")
)

// ErrCommitUnknown is returned by [InTx] when the connection failed while the COMMIT was under way:
// the transaction, with its tasks, may be committed or not. Only the rows can tell. An app that
// repeats such a call needs a key of its own that makes the second one harmless.
// [IsSerializationFailure] is false for it.
var ErrCommitUnknown = intx.ErrCommitUnknown

// Errors of [WaitFor] and [Result].
var (
	// ErrNotFinished: the task waits or runs.
	ErrNotFinished = errors.New("outbox: the task has not finished")
	// ErrTaskDead: the task is a dead letter.
	ErrTaskDead = errors.New("outbox: the task is a dead letter")
	// ErrUnknownTask: no such task waits, runs, is a dead letter or in the history.
	ErrUnknownTask = errors.New("outbox: the task is unknown: it is not committed, or left no record")
	// ErrNoResult: the handler of the finished task gave no result.
	ErrNoResult = errors.New("outbox: the task has no result")
)

// Errors of a running task.
var (
	// ErrLeaseLost: the lease ended before the task was completed; another relay may run the task
	// already. [Task.Complete] returns it, and it is the cause of the handler's canceled context
	// (see context.Cause).
	ErrLeaseLost = errors.New("outbox: the lease was lost")
	// ErrNotLeased: Complete or Extend was called on a task that no Leased handler holds.
	ErrNotLeased = errors.New("outbox: the task is not leased")
	// ErrNotRunning: SetProgress or SetResult was called on a task that no relay runs any more.
	ErrNotRunning = errors.New("outbox: the task does not run")
	// ErrNoHistory: SetResult was called on a task whose type keeps no history.
	ErrNoHistory = errors.New("outbox: the task's type keeps no history")
	// ErrCanceled is the cause of a handler's canceled context when [Cancel] was called for its
	// task. [WaitFor] returns it.
	ErrCanceled = errors.New("outbox: the task was canceled")
	// ErrDraining is the cause of a handler's canceled context when its relay stops and the drain
	// timeout has passed. The run is not counted as an attempt.
	ErrDraining = errors.New("outbox: the relay is draining")
)
