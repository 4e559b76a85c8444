package outbox

import "context"

// RunNow makes a scheduled task (delayed, or between two attempts) due at once, inside the caller's
// transaction, and reports whether there was such a task. Its attempts, and all else, stay as they
// are. It takes its place in its lane as any scheduled task does whose time has come. The commit
// wakes relays that sleep; those that cannot LISTEN find it at their next poll.
//
// false means that no such task is scheduled: it is ready, runs, waits for another of its ordering
// key, is done or a dead letter, is not committed yet, or never was. RunNow waits for nobody, so it
// also returns false for a task that another transaction has locked.
//
// The only option that it takes is [Schema]. Errors: ErrNoTransaction and ErrInvalidOption before
// any SQL is sent; any other is tx's own, wrapped, such as a serialization failure under REPEATABLE
// READ. The role needs EXECUTE on the function outbox.run_task_now, and nothing else.
func RunNow(ctx context.Context, tx Querier, taskID int64, opts ...Option) (bool, error) {
	var found bool
	err := changeTask(ctx, tx, "run now", "run_task_now", taskID, opts, &found)
	return found, err
}
