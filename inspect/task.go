package inspect

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// State is where a task is.
type State string

// The states. A task that a Tx or Batch handler works on is Ready until its claim commits, and has a [Run].
const (
	Ready     State = "ready"
	Scheduled State = "scheduled" // until its RunAt, a retry's included
	Leased    State = "leased"    // a Leased handler has it
	Waiting   State = "waiting"   // for another task of its ordering key
	Dead      State = "dead"      // a dead letter
	Finished  State = "finished"  // of a type that keeps them
)

// Task is one task, without what may be secret; see [Secrets].
type Task struct {
	TaskID      int64
	Type        string
	State       State
	Priority    int
	Attempt     int // attempts begun and counted
	MaxAttempts int // its own; 0: as its handler was registered. A dead letter's is what held; of a finished task it is not kept
	CreatedAt   time.Time
	RunAt       time.Time
	AttemptedAt time.Time         // zero: never
	EndedAt     time.Time         // died or finished; zero for others
	Reason      deadletter.Reason // of a dead letter
	LastError   string            // at most 4 kB; of a finished task what it was discarded for
	Timeout     time.Duration     // of its own; 0: as its handler was registered, or finished
	Iterations  int               // how often its handler returned RunAgain; not kept of a finished task
	LeasedUntil time.Time         // of a leased task with a timeout or more time; zero: while its relay is alive
	RelayID     string            // leased: of the relay that has it; else "", or of the one that died while it ran the task
	Runs        []Run             // under way or lost, the oldest first; only Get reads them
}

// Run is a run of a task, in the journal of Tx and Batch handlers or by its lease.
type Run struct {
	TaskIDs   []int64 // several for a batch, at most 1,000 of them
	Type      string  // "" where it is not known: the task is gone
	RelayID   string
	StartedAt time.Time
	Lost      bool // its relay is dead, or lost the connection of the run, or the lease has run out: it counts when the task is claimed next
}

// Secrets are what only those may see who may see payloads.
type Secrets struct {
	Payload     json.RawMessage
	Headers     json.RawMessage // nil: none
	UniqueKey   string          // "": none, or finished
	OrderingKey string          // "": none, or finished
}

// The columns of a Task, from each of the tables.
const (
	taskColumns = `t.task_id, t.task_type, t.state, t.priority, t.attempt, COALESCE(t.max_attempts, 0) AS max_attempts, t.created_at, t.run_at, t.attempted_at,
       NULL::timestamptz AS ended_at, '' AS reason, COALESCE(t.last_error, '') AS last_error, COALESCE(t.timeout_ms, 0) AS timeout_ms, t.iterations,
       t.leased_until, COALESCE(t.relay_id::text, '') AS relay_id`
	deadColumns = `t.task_id, t.task_type, 'dead', t.priority, t.attempt, t.max_attempts, t.created_at, t.run_at, t.attempted_at,
       t.died_at, t.reason, COALESCE(t.last_error, ''), COALESCE(t.timeout_ms, 0), t.iterations, NULL::timestamptz, ''`
	doneColumns = `t.task_id, t.task_type, 'finished', t.priority, t.attempt, 0, t.created_at, t.run_at, t.attempted_at,
       t.finished_at, '', COALESCE(t.last_error, ''), 0, 0, NULL::timestamptz, ''`
)

func (t *Task) scan(row interface{ Scan(...any) error }, more ...any) error {
	var attempted, ended, leased sql.NullTime
	var timeout int64
	err := row.Scan(append([]any{&t.TaskID, &t.Type, &t.State, &t.Priority, &t.Attempt, &t.MaxAttempts, &t.CreatedAt, &t.RunAt, &attempted,
		&ended, &t.Reason, &t.LastError, &timeout, &t.Iterations, &leased, &t.RelayID}, more...)...)
	t.AttemptedAt, t.EndedAt, t.LeasedUntil = attempted.Time, ended.Time, leased.Time
	t.Timeout = time.Duration(timeout) * time.Millisecond
	return err
}

// A task that came back after it was finished, as after a failover, is not in the history.
const getSQL = `/* outbox: inspect a task */
SELECT ` + taskColumns + `, 1 AS place FROM outbox.task t WHERE t.task_id = $1
UNION ALL
SELECT ` + deadColumns + `, 2 FROM outbox.dead_task t WHERE t.task_id = $1
UNION ALL
SELECT ` + doneColumns + `, 3 FROM outbox.done_task t WHERE t.task_id = $1
 ORDER BY place LIMIT 1`

// Get returns a task wherever it is, with its runs. The error is ErrNotFound if it is nowhere.
func Get(ctx context.Context, q outbox.Querier, taskID int64, opts ...Option) (Task, error) {
	s, err := newSettings(opts)
	if err != nil {
		return Task{}, err
	}
	var t Task
	var place int
	err = t.scan(q.QueryRowContext(ctx, s.sql(getSQL), taskID), &place)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Task{}, fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	case err == nil:
		t.Runs, err = s.runsOf(ctx, q, t)
	}
	if err != nil {
		return Task{}, fmt.Errorf("inspect: get task %d: %w", taskID, pgerr.WithoutDSN(err))
	}
	return t, nil
}

// Rights are by table, and an operator has them for the payloads of dead letters only. So first it is found where the task is.
const placeSQL = `/* outbox: where a task is */
SELECT place FROM (
  SELECT 1 AS place FROM outbox.task t WHERE t.task_id = $1
   UNION ALL SELECT 2 FROM outbox.dead_task t WHERE t.task_id = $1
   UNION ALL SELECT 3 FROM outbox.done_task t WHERE t.task_id = $1) p
 ORDER BY place LIMIT 1`

var secretsSQL = map[int]string{
	1: `/* outbox: inspect a payload */
SELECT payload::text, COALESCE(headers::text, ''), COALESCE(unique_key, ''), COALESCE(ordering_key, '') FROM outbox.task WHERE task_id = $1`,
	2: `/* outbox: inspect a payload */
SELECT payload::text, COALESCE(headers::text, ''), COALESCE(unique_key, ''), COALESCE(ordering_key, '') FROM outbox.dead_task WHERE task_id = $1`,
	3: `/* outbox: inspect a payload */
SELECT payload::text, COALESCE(headers::text, ''), '', '' FROM outbox.done_task WHERE task_id = $1`,
}

// GetSecrets returns a task's payload, headers and keys, wherever it is. The error is ErrNotFound if it is nowhere.
//
// It needs SELECT on the payload, headers and keys of the table where the task is: of the roles of docs/security.md the worker and the owner have it,
// and the operator for dead letters. Others get PostgreSQL's error with SQLSTATE 42501 (insufficient_privilege), after which a transaction is to be rolled back.
func GetSecrets(ctx context.Context, q outbox.Querier, taskID int64, opts ...Option) (Secrets, error) {
	s, err := newSettings(opts)
	if err != nil {
		return Secrets{}, err
	}
	var out Secrets
	var payload, headers string
	for range 5 { // it may have gone elsewhere between the two statements
		var place int
		if err = q.QueryRowContext(ctx, s.sql(placeSQL), taskID).Scan(&place); err == nil {
			err = q.QueryRowContext(ctx, s.sql(secretsSQL[place]), taskID).Scan(&payload, &headers, &out.UniqueKey, &out.OrderingKey)
		} else if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if !errors.Is(err, sql.ErrNoRows) {
			break
		}
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Secrets{}, fmt.Errorf("%w: task %d", ErrNotFound, taskID)
	case err != nil:
		return Secrets{}, fmt.Errorf("inspect: get the payload of task %d: %w", taskID, pgerr.WithoutDSN(err))
	}
	out.Payload = json.RawMessage(payload)
	if headers != "" {
		out.Headers = json.RawMessage(headers)
	}
	return out, nil
}
