package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Why a task is a dead letter, as in dead_task.reason; package admin has the same constants for
// apps.
const (
	ReasonAttempts        = "attempts"
	ReasonHandler         = "handler"
	ReasonLostConnections = "lost_connections"
	ReasonCommitted       = "committed"
)

// Change is what becomes of a task that is not done.
type Change struct {
	Attempt        int
	Wait           time.Duration
	Err            error         // nil keeps the last one
	Unlisted       bool          // Err is the last error only: the timeline does not grow
	Reason         string        // why it is a dead letter; "" if it is none
	Keep           []string      // tokens of runs that stay in the journal
	Untried        bool          // its handler was not called
	Failed         bool          // its handler failed: a run for Stats to count
	Throttled      bool          // the other side asked to wait: no attempt
	Took           time.Duration // the handler's call; 0: not known
	Again          bool          // a new iteration
	Payload        string        // of the new iteration; "" keeps the task's own
	ClaimCommitted bool          // another task may be the head of its ordering key since
}

// Execer is a transaction: *sql.Tx or exclusive.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// attempted_at is never NULL: the trigger that counts takes a row without it for a new task.
const writeBackSQL = `/* outbox: write back */
WITH gone AS (DELETE FROM outbox.running WHERE task_id = $1 AND NOT token = ANY ($13::uuid[])),
failed AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, $9, 'failed' WHERE $14::boolean)
INSERT INTO outbox.task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts, state,
       task_type, payload, headers, last_error, ` + OptionalColumns + `, timeline)
OVERRIDING SYSTEM VALUE
VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond',
        timestamptz 'epoch' + $3::bigint * interval '1 microsecond', 
        COALESCE(timestamptz 'epoch' + $4::bigint * interval '1 microsecond', now()),
        $5, $6, $7, $8, $9, $10::jsonb, $11::jsonb, $12, $15, $16, $17, $18, $19, $20,
        outbox.add_events($21::jsonb, COALESCE(outbox.lost_runs($1, $24, $13::uuid[], $22::uuid), '[]') || COALESCE($23::jsonb, '[]')))`

// In the transaction that removes a task its key is free, also one that is to be kept until it is
// done: a task that the handler enqueued there under that key follows it. If the task goes on after
// all, it has its key still, and the other one is dropped, as an Enqueue is skipped while the task
// runs. Nobody else has seen that task: it was created when the transaction began. It leaves no
// trace in the counts.
const keepKeySQL = `/* outbox: keep a key until done */
WITH follower AS MATERIALIZED (
  SELECT t.task_id FROM outbox.unique_key k JOIN outbox.task t ON t.task_id = k.task_id
   WHERE k.task_type = $1 AND k.key = $2 AND t.task_id <> $3 AND t.created_at = now()),
dropped AS (
  DELETE FROM outbox.task WHERE task_id = (SELECT task_id FROM follower) RETURNING task_type, state),
uncounted AS (
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT 0, -1, task_type, state FROM dropped)
UPDATE outbox.unique_key SET task_id = $3
 WHERE task_type = $1 AND key = $2 AND EXISTS (SELECT 1 FROM follower)`

// WriteBack inserts a deleted task again, as scheduled, so that no trigger takes it for a new one.
func (s *Store) WriteBack(ctx context.Context, tx Execer, t *Row, c Change) error {
	lastError, payload, timeline, optional := t.lastError, t.Payload, t.timeline, t.optional
	if c.Err != nil {
		text := pgerr.Text(c.Err)
		lastError = &text
	}
	if c.Again {
		lastError, timeline, optional.iterations = nil, nil, min(optional.iterations+1, math.MaxInt32)
		if c.Payload != "" {
			payload = c.Payload
		}
	}
	optional.orderingKey = t.KeyAfter(c)
	if t.uniqueUntilDone && t.uniqueKey != nil && !c.ClaimCommitted {
		if _, err := tx.ExecContext(ctx, s.SQL(keepKeySQL), t.TaskType, t.uniqueKey, t.ID); err != nil {
			return err
		}
	}
	attemptedAt := t.Began
	if c.Untried {
		attemptedAt = t.attemptedAt
	}
	state := "scheduled"
	if c.ClaimCommitted && optional.orderingKey != nil {
		state = "waiting"
		if _, err := tx.ExecContext(ctx, s.SQL(markHeadlessSQL), t.TaskType, optional.orderingKey); err != nil {
			return err
		}
	}
	args := []any{t.ID, c.Wait.Microseconds(), t.createdAt, attemptedAt, t.Priority, c.Attempt, t.rowMax, state,
		t.TaskType, payload, t.headers, lastError, pq.Array(nonNil(c.Keep)), c.Failed}
	args = append(append(args, optional.args()...), timeline, s.lostTo(t), s.Noted(c), t.Attempt)
	result, err := tx.ExecContext(ctx, s.SQL(writeBackSQL), args...)
	return pg.One(result, err)
}

const writeDeadSQL = `/* outbox: dead letter */
WITH gone AS (DELETE FROM outbox.running WHERE task_id = $1),
failed AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, $8, 'failed' WHERE $12::boolean)
INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason,
       task_type, payload, headers, last_error, ` + OptionalColumns + `, task_max_attempts, timeline)
VALUES ($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', timestamptz 'epoch' + $3::bigint * interval '1 microsecond',
        now(), clock_timestamp(), $4, $5, $6, $7, $8, $9::jsonb, $10::jsonb, $11, $13, $14, $15, $16, $17, $18, $19,
        outbox.add_events($20::jsonb, COALESCE(outbox.lost_runs($1, $23, $24::uuid[], $21::uuid), '[]') || COALESCE($22::jsonb, '[]')))`

// WriteDead inserts a deleted task into the dead letters.
func (s *Store) WriteDead(ctx context.Context, tx Execer, t *Row, c Change) error {
	args := []any{t.ID, t.RunAt, t.createdAt, t.Priority, c.Attempt, t.Max, c.Reason, t.TaskType, t.Payload, t.headers, pgerr.Text(c.Err), c.Failed}
	args = append(append(args, t.optional.args()...), t.rowMax, t.timeline, s.lostTo(t), s.Noted(c), t.Attempt, pq.Array(nonNil(t.Undecided)))
	result, err := tx.ExecContext(ctx, s.SQL(writeDeadSQL), args...)
	return pg.One(result, err)
}

// ForgetTasks deletes all that the journal has of tasks that are done.
func (s *Store) ForgetTasks(done []*Row) string {
	ids, _ := pq.Array(IDs(done)).Value() // no error, of integers
	return s.SQL(fmt.Sprintf("DELETE FROM outbox.running WHERE task_id = ANY ('%s')", ids))
}

// Noted is what a change adds to the timeline, as JSON; nil for nothing.
func (s *Store) Noted(c Change) *string {
	if c.Err == nil || c.Again || c.Unlisted {
		return nil
	}
	e := Event{Event: EventFailed, Attempt: c.Attempt, Relay: s.RelayID, Micros: c.Took.Microseconds(), Error: cut(pgerr.Text(c.Err)), Reason: c.Reason}
	switch {
	case c.Throttled:
		e.Event, e.Attempt = EventThrottled, c.Attempt+1
	case c.Reason != "" && !c.Failed:
		e.Event = EventDead
	case !c.Failed:
		e.Attempt++ // it is not counted
	}
	if s.Ahead > 0 {
		at := time.Now().Add(s.Ahead)
		e.At = &at
	}
	text, err := json.Marshal([]Event{e})
	if err != nil {
		return nil
	}
	out := string(text)
	return &out
}

// lostTo is the relay whose journal lost_runs passes over; nil where there are no lost runs.
func (s *Store) lostTo(r *Row) *string {
	if r.Lost == 0 {
		return nil
	}
	return &s.RelayID
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
