package outbox

import (
	"context"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
)

// RunNow makes a scheduled task (delayed, or between two attempts) due at once, inside the caller's transaction, and reports whether there was such a
// task. Its attempts, and what else is known of it, stay as they are. It takes its place in its lane as any scheduled task does whose time has come, and
// relays that sleep are woken by the commit; those that cannot LISTEN find it at their next poll.
//
// false means that no such task is scheduled: it is ready, runs, waits for another of its ordering key, is done or a dead letter, is not
// committed yet, or never was. A task that another transaction has locked is such a one as well, as it is being made ready, changed or
// canceled at this moment: RunNow waits for nobody.
//
// The only option that it takes is [Schema]. Errors: ErrNoTransaction and ErrInvalidOption before any SQL is sent; any other is tx's own, wrapped, such
// as a serialization failure under REPEATABLE READ. The role needs EXECUTE on the function outbox.run_task_now, and nothing else.
func RunNow(ctx context.Context, tx Querier, taskID int64, opts ...Option) (bool, error) {
	if err := checkTx(tx); err != nil {
		return false, err
	}
	schema, err := schemaOf(opts)
	if err != nil {
		return false, err
	}
	if taskID < 1 {
		return false, fmt.Errorf("%w: RunNow: the task ID %d: must be positive", ErrInvalidOption, taskID)
	}
	var found bool
	err = tx.QueryRowContext(ctx, fmt.Sprintf(`/* outbox: run now */ SELECT "%s".run_task_now($1)`, schema), taskID).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("outbox: run task %d now: %w", taskID, pgerr.WithoutDSN(err))
	}
	return found, nil
}
