package outbox

import (
	"context"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/txcheck"
)

// CancelResult is the result of [Cancel]: the text that the SQL function cancel_task returns.
type CancelResult string

// The results of Cancel.
const (
	// CancelRemoved: the task waited. It is gone when the transaction commits, and back if it does
	// not.
	CancelRemoved CancelResult = "canceled"
	// CancelRequested: the task runs, or is being claimed. Its relay is told once the transaction
	// has committed.
	CancelRequested CancelResult = "requested"
	// CancelNotFound: no such task waits or runs: it is done, a dead letter, not committed yet, or
	// never was. A handler's own task is not found in the transaction that removes it: that of a Tx
	// handler or of Task.Complete. In that of a Batch handler no task of the call is found.
	CancelNotFound CancelResult = "not_found"
)

// Cancel takes a task back inside the caller's transaction. One that waits (ready, scheduled or
// behind another of its ordering key) is deleted. One that runs is asked to end: within a heartbeat
// of its relay (3 s) after the commit, its handler's context ends with the cause ErrCanceled. When
// the handler then returns an error the task is gone: it is not retried, counts no attempt and
// leaves no dead letter, and a Tx handler's writes are rolled back. A handler that returns nil all
// the same has done the task. If the run ends before it hears of the request, its relay removes the
// task instead of a retry; if that relay dies, the one that takes its leases over does.
//
// A batch that a canceled task is in ends as a whole; its other tasks run again, without an attempt
// counted.
//
// Cancel waits for no handler. Errors: ErrNoTransaction and ErrInvalidOption, also for a taskID
// below 1, before any SQL is sent; any other is tx's own, wrapped, such as a serialization failure
// under REPEATABLE READ. The role needs EXECUTE on the function outbox.cancel_task, and nothing
// else.
func Cancel(ctx context.Context, tx Querier, taskID int64, opts ...SchemaOption) (CancelResult, error) {
	var r CancelResult
	err := changeTask(ctx, tx, "cancel", "cancel_task", taskID, opts, &r)
	return r, err
}

// RunNowResult is the result of [RunNow].
type RunNowResult string

// The results of RunNow.
const (
	// RunNowDue: the task was scheduled, and is ready when the transaction commits.
	RunNowDue RunNowResult = "due"
	// RunNowNotScheduled: no such task is scheduled: it is ready, runs, waits for another of its
	// ordering key, is done or a dead letter, is not committed yet, or never was; or another
	// transaction has it locked.
	RunNowNotScheduled RunNowResult = "not_scheduled"
)

// RunNow makes a scheduled task (delayed, or between two attempts) due at once, inside the caller's
// transaction. Its attempts, and all else, stay as they are. From then on it is claimed as any task
// whose time has come. The commit wakes relays that sleep; those that cannot LISTEN find it at
// their next poll. RunNow waits for nobody.
//
// Errors: ErrNoTransaction and ErrInvalidOption, also for a taskID below 1, before any SQL is sent;
// any other is tx's own, wrapped, such as a serialization failure under REPEATABLE READ. The role
// needs EXECUTE on the function outbox.run_task_now, and nothing else.
func RunNow(ctx context.Context, tx Querier, taskID int64, opts ...SchemaOption) (RunNowResult, error) {
	var found bool
	switch err := changeTask(ctx, tx, "run now", "run_task_now", taskID, opts, &found); {
	case err != nil:
		return "", err
	case !found:
		return RunNowNotScheduled, nil
	}
	return RunNowDue, nil
}

// changeTask calls a function of the schema on one task, and scans its answer.
func changeTask(ctx context.Context, tx Querier, what, function string, taskID int64, opts []SchemaOption, answer any) error {
	if err := txcheck.Given(tx); err != nil {
		return err
	}
	schema, err := schemaOf(opts)
	if err != nil {
		return err
	}
	if err := checkTaskID(what, taskID); err != nil {
		return err
	}
	if err := txcheck.Begun(ctx, tx); err != nil {
		return err
	}
	query := fmt.Sprintf(`/* outbox: %s */ SELECT "%s".%s($1)`, what, schema, function)
	if err := tx.QueryRowContext(ctx, query, taskID).Scan(answer); err != nil {
		return fmt.Errorf("outbox: %s: task %d: %w", what, taskID, pgerr.WithoutDSN(err))
	}
	return nil
}

func checkTaskID(what string, taskID int64) error {
	if taskID < 1 {
		return fmt.Errorf("%w: %s: the task ID %d: must be positive", ErrInvalidOption, what, taskID)
	}
	return nil
}
