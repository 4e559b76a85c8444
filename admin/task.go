package admin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/key"
)

// State is where a task is.
type State string

// The states. A task that a Tx or Batch handler works on is StateReady until its claim commits, and has
// a [Run].
const (
	StateReady     State = "ready"
	StateScheduled State = "scheduled" // until a relay makes it ready at its RunAt, a retry's included
	StateLeased    State = "leased"    // a Leased handler has it
	StateWaiting   State = "waiting"   // for another task of its ordering key
	StateDead      State = "dead"      // a dead letter
	StateFinished  State = "finished"  // of a type that keeps them (handlers.Retention)
)

// Task is one task, without what may be secret; see [Payload].
type Task struct {
	ID          int64
	Key         string // its idempotency key, and the id of its event: outbox.Task.Key
	Type        string
	State       State
	Priority    int
	Attempt     int // attempts begun and counted
	MaxAttempts int // its own; 0: as its handler was registered. A dead letter has the limit that held
	CreatedAt   time.Time
	RunAt       time.Time
	AttemptedAt time.Time     // zero: never
	EndedAt     time.Time     // died or finished; zero for others
	KeepUntil   time.Time     // of a finished task
	Reason      outbox.Reason // of a dead letter
	LastError   string        // at most 4 kB; of a finished task the reason why it was discarded
	Timeout     time.Duration // its own; 0: as its handler was registered
	Iterations  int           // the number of RunAgain results of its handler
	LeasedUntil time.Time     // of a leased task with a timeout or more time; zero: while its relay is alive
	RelayID     string        // leased: the relay that has it; else "", or the relay that died while it ran the task
	Runs        []Run         // under way or lost, the oldest first; only Client.Task reads them
	Timeline    []Event       // at most 20 events, the oldest first, and its end; only Client.Task reads it
}

// The columns of a Task in each table. A new column of task is in all of them.
const (
	sharedColumns = `t.task_id, t.task_type, t.state, t.priority, t.attempt, COALESCE(t.max_attempts, 0) AS max_attempts,
       t.created_at, t.run_at, t.attempted_at, COALESCE(t.last_error, '') AS last_error,
       COALESCE(t.timeout_ms, 0) AS timeout_ms, t.iterations, t.leased_until,
       COALESCE(t.relay_id::text, '') AS relay_id, COALESCE((SELECT database_id::text FROM outbox.identity), '') AS database_id, `

	taskColumns = sharedColumns + `NULL::timestamptz AS ended_at, NULL::timestamptz AS keep_until, '' AS reason`
	deadColumns = sharedColumns + `t.died_at, NULL::timestamptz, t.reason`
	doneColumns = sharedColumns + `t.finished_at, t.keep_until, ''`
)

func scanTask(row scanner, t *Task) error { return t.scan(row) }

// scan reads the columns, and what follows them.
func (t *Task) scan(row scanner, more ...any) error {
	var attempted, ended, kept, leased sql.NullTime
	var timeout int64
	var databaseID string
	err := row.Scan(append([]any{
		&t.ID, &t.Type, &t.State, &t.Priority, &t.Attempt, &t.MaxAttempts, &t.CreatedAt, &t.RunAt, &attempted,
		&t.LastError, &timeout, &t.Iterations, &leased, &t.RelayID, &databaseID, &ended, &kept, &t.Reason,
	}, more...)...)
	t.Key = key.Of(databaseID, t.ID)
	t.AttemptedAt, t.EndedAt, t.KeepUntil, t.LeasedUntil = attempted.Time, ended.Time, kept.Time, leased.Time
	t.Timeout = time.Duration(timeout) * time.Millisecond
	return err
}

// A task that came back after it was finished, as after a failover, is not in the history.
const taskSQL = `/* outbox: inspect a task */
SELECT ` + taskColumns + `, t.timeline, 1 AS place FROM outbox.task t WHERE t.task_id = $1
UNION ALL
SELECT ` + deadColumns + `, t.timeline, 2 FROM outbox.dead_task t WHERE t.task_id = $1
UNION ALL
SELECT ` + doneColumns + `, t.timeline, 3 FROM outbox.done_task t WHERE t.task_id = $1
 ORDER BY place LIMIT 1`

// Task returns a task wherever it is, with its runs. The error is ErrNotFound if it is nowhere.
func (c *Client) Task(ctx context.Context, taskID int64) (Task, error) {
	var t Task
	err := c.read(func(q outbox.Querier) error {
		var timeline []byte
		var place int
		err := t.scan(q.QueryRowContext(ctx, c.schema.SQL(taskSQL), taskID), &timeline, &place)
		if err == nil {
			t.readTimeline(timeline)
			t.Runs, err = c.runsOf(ctx, q, taskID, t.Type)
		}
		return err
	})
	if err != nil {
		return Task{}, failedTask("get", taskID, err)
	}
	return t, nil
}

// TaskByKey is [Client.Task] of the task with that key, as the consumer of an event or the receiver of
// a webhook names it. The error is ErrNotFound also if the key is another database's, or from before
// this one was adopted.
func (c *Client) TaskByKey(ctx context.Context, taskKey string) (Task, error) {
	id, ok := key.TaskID(taskKey)
	if !ok {
		return Task{}, invalid("key: %.40q is not the key of a task", taskKey)
	}
	t, err := c.Task(ctx, id)
	if err == nil && t.Key != taskKey {
		return Task{}, fmt.Errorf("%w: the key %s is of another database", ErrNotFound, taskKey)
	}
	return t, err
}

// failedTask wraps an error of a statement that looks for a task.
func failedTask(what string, taskID int64, err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	}
	return failed(fmt.Sprintf("%s task %d", what, taskID), err)
}
