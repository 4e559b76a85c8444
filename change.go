package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/await"
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

// WaitFor returns when a task has ended, for a request that must answer with what a task does. Enqueue the
// task, commit, and wait then: while the transaction is open the task is unknown. WaitFor holds no connection
// between its looks. Where a relay of this process runs the task, it tells WaitFor at once. Where one of another
// process does, it tells by NOTIFY, if it and a relay of this process have a relay.Config.ListenDSN. WaitFor
// looks at the task anyway, with pauses that grow from 20 ms to 1 s, or 2 s with LISTEN.
//
// It returns nil if the task is done, also by handlers.Discard. Else it returns:
//   - ErrTaskDead: the task is a dead letter. The text has the reason and the last error.
//   - ErrCanceled: the task was there when WaitFor began, and was removed: by [Cancel], by an operator or as it
//     expired. WaitFor knows it of a task that was asked to end, and of one whose type has a history in each living
//     relay that handles it.
//   - ErrUnknownTask: the task is nowhere. It is not committed, never was, or left no record: its type has no
//     history (handlers.Retention), or that has ended.
//   - ErrInvalidOption, for a taskID below 1 or a schema, before any SQL is sent.
//   - the cause of ctx's end, or the database's error. The task goes on.
//
// A dead letter that is redriven is waited for like any other task. A failed attempt does not end WaitFor: bound
// it by ctx. The role needs EXECUTE on the function outbox.task_end, which shows errors and results: a worker has
// it, and an enqueuer is granted it.
func WaitFor(ctx context.Context, db *sql.DB, taskID int64, opts ...SchemaOption) error {
	schema, err := schemaOf(opts)
	if err != nil {
		return err
	}
	if err := checkTaskID("wait for", taskID); err != nil {
		return err
	}
	ended, stop := await.Wait(schema, taskID)
	defer stop()
	var askAt time.Time
	begun, asked, kept := time.Now(), false, false
	for pause := 20 * time.Millisecond; ; pause = min(pause*3/2, longestPause) {
		end, err := taskEnd(ctx, db, schema, taskID)
		switch {
		case err != nil:
			return fmt.Errorf("outbox: wait for task %d: %w", taskID, pgerr.WithoutDSN(cmp.Or(context.Cause(ctx), err)))
		case end.state == "gone" && (asked || kept):
			return fmt.Errorf("%w: task %d", ErrCanceled, taskID)
		case end.state != "open":
			return end.err(taskID)
		}
		asked, kept = asked || end.asked, end.kept
		wait := min(pause, time.Second)
		if now := time.Now(); now.Sub(begun) > askAfter && await.Listens(schema) {
			if wait = pause; now.After(askAt) {
				askAt = now.Add(await.AskAgain)
				if ask(ctx, db, schema, taskID) == nil { // on a standby it fails
					wait = 0 // the task may have ended before the relays heard
				}
			}
		}
		select {
		case <-time.After(wait):
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("outbox: wait for task %d: %w", taskID, context.Cause(ctx))
		}
	}
}

const (
	longestPause = 2 * time.Second
	askAfter     = 100 * time.Millisecond // shorter tasks cost no NOTIFY
)

const askSQL = `/* outbox: ask for the end of a task */
SELECT pg_notify($1, $2)`

// ask asks the relays of other processes to say when a run of the task has ended.
func ask(ctx context.Context, db *sql.DB, schema string, taskID int64) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, askSQL, schema, await.Question(taskID))
	return err
}

// Result reads the result that the handler of a finished task gave to [Task.SetResult]. q is a pool, a connection
// or a transaction, on the primary or a standby. It returns:
//   - ErrNotFinished: the task waits or runs. [WaitFor] waits for it.
//   - ErrTaskDead and ErrUnknownTask, as of WaitFor.
//   - ErrNoResult: the task is done, and its handler gave no result.
//   - ErrInvalidOption, for a taskID below 1 or a schema, before any SQL is sent.
//   - the error of encoding/json if the result is no T, or the database's error.
//
// The result is there as long as the record of the task in the history: handlers.Retention. The role's rights
// are those of WaitFor.
func Result[T any](ctx context.Context, q Querier, taskID int64, opts ...SchemaOption) (T, error) {
	var result T
	schema, err := schemaOf(opts)
	if err != nil {
		return result, err
	}
	if err := checkTaskID("result", taskID); err != nil {
		return result, err
	}
	end, err := taskEnd(ctx, q, schema, taskID)
	switch {
	case err != nil:
		return result, fmt.Errorf("outbox: result of task %d: %w", taskID, pgerr.WithoutDSN(err))
	case end.state == "open":
		return result, fmt.Errorf("%w: task %d", ErrNotFinished, taskID)
	case end.state != "done":
		return result, end.err(taskID)
	case !end.result.Valid:
		return result, fmt.Errorf("%w: task %d", ErrNoResult, taskID)
	}
	if err := json.Unmarshal([]byte(end.result.String), &result); err != nil {
		return result, fmt.Errorf("outbox: result of task %d: it is no %T: %w", taskID, result, err)
	}
	return result, nil
}

// end is how far a task is.
type end struct {
	state  string // open, done, dead or gone
	reason Reason // of a dead letter
	text   string // its last error
	result sql.NullString
	asked  bool // open: to end
	kept   bool // open: a history will have it
}

const taskEndSQL = `/* outbox: end of a task */
SELECT state, reason, error, result::text, asked, kept FROM "%s".task_end($1)`

func taskEnd(ctx context.Context, q Querier, schema string, taskID int64) (e end, err error) {
	err = q.QueryRowContext(ctx, fmt.Sprintf(taskEndSQL, schema), taskID).
		Scan(&e.state, &e.reason, &e.text, &e.result, &e.asked, &e.kept)
	return e, err
}

// err is the error of a task that is not open; nil: it is done.
func (e end) err(taskID int64) error {
	switch e.state {
	case "done":
		return nil
	case "dead":
		return fmt.Errorf("%w: task %d: %s: %s", ErrTaskDead, taskID, e.reason, e.text)
	}
	return fmt.Errorf("%w: task %d", ErrUnknownTask, taskID)
}
