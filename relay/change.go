package relay

import (
	"context"
	"database/sql"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Why a task is a dead letter, as in dead_task.reason.
const (
	reasonAttempts        = "attempts"
	reasonHandler         = "handler"
	reasonLostConnections = "lost_connections"
	reasonCommitted       = "committed"
)

// taskChange is what becomes of a task that is not done.
type taskChange struct {
	attempt        int
	wait           time.Duration
	err            error    // nil keeps the last one
	reason         string   // why it is a dead letter; "" if it is none
	keep           []string // tokens of runs that stay in the journal
	untried        bool     // its handler was not called
	failed         bool     // its handler failed: a run for Stats to count
	again          bool     // a new iteration
	payload        string   // of the new iteration; "" keeps the task's own
	claimCommitted bool     // another task may be the head of its ordering key since
}

// execer is a transaction: *sql.Tx or exclusive.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// attempted_at is never NULL: the trigger that counts takes a row without it for a new task.
const writeBackSQL = `/* outbox: write back */
WITH gone AS (DELETE FROM outbox.running WHERE task_id = $1 AND NOT token = ANY ($13::uuid[])),
failed AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, $9, 'failed' WHERE $14::boolean)
INSERT INTO outbox.task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts, state,
       task_type, payload, headers, last_error, ` + optionalColumns + `)
OVERRIDING SYSTEM VALUE
VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond',
        timestamptz 'epoch' + $3::bigint * interval '1 microsecond', 
        COALESCE(timestamptz 'epoch' + $4::bigint * interval '1 microsecond', now()),
        $5, $6, $7, $8, $9, $10::jsonb, $11::jsonb, $12, $15, $16, $17, $18, $19, $20)`

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

// writeBack inserts a deleted task again, as scheduled, so that no trigger takes it for a new one.
func (s *store) writeBack(ctx context.Context, tx execer, t *row, c taskChange) error {
	lastError, payload, optional := t.lastError, t.payload, t.optional
	if c.err != nil {
		lastError = sql.NullString{String: pgerr.Text(c.err), Valid: true}
	}
	if c.again {
		lastError, optional.iterations = sql.NullString{}, min(optional.iterations+1, math.MaxInt32)
		if c.payload != "" {
			payload = c.payload
		}
	}
	optional.orderingKey = t.keyAfter(c)
	if t.uniqueUntilDone && t.uniqueKey.Valid && !c.claimCommitted {
		if _, err := tx.ExecContext(ctx, s.sql(keepKeySQL), t.taskType, t.uniqueKey, t.id); err != nil {
			return err
		}
	}
	attemptedAt := t.began
	if c.untried {
		attemptedAt = t.attemptedAt
	}
	state := "scheduled"
	if c.claimCommitted && optional.orderingKey.Valid {
		state = "waiting"
		if _, err := tx.ExecContext(ctx, s.sql(markHeadlessSQL), t.taskType, optional.orderingKey); err != nil {
			return err
		}
	}
	args := []any{t.id, c.wait.Microseconds(), t.createdAt, attemptedAt, t.priority, c.attempt, t.rowMax, state,
		t.taskType, payload, t.headers, lastError, pq.Array(nonNil(c.keep)), c.failed}
	result, err := tx.ExecContext(ctx, s.sql(writeBackSQL), append(args, optional.args()...)...)
	return pg.One(result, err)
}

const writeDeadSQL = `/* outbox: dead letter */
WITH gone AS (DELETE FROM outbox.running WHERE task_id = $1),
failed AS (INSERT INTO outbox.counter_log (tasks, task_type, kind) SELECT 1, $8, 'failed' WHERE $12::boolean)
INSERT INTO outbox.dead_task (task_id, run_at, created_at, attempted_at, died_at, priority, attempt, max_attempts, reason,
       task_type, payload, headers, last_error, ` + optionalColumns + `, task_max_attempts)
VALUES ($1, timestamptz 'epoch' + $2::bigint * interval '1 microsecond', timestamptz 'epoch' + $3::bigint * interval '1 microsecond',
        now(), clock_timestamp(), $4, $5, $6, $7, $8, $9::jsonb, $10::jsonb, $11, $13, $14, $15, $16, $17, $18, $19)`

// writeDead inserts a deleted task into the dead letters.
func (s *store) writeDead(ctx context.Context, tx execer, t *row, c taskChange) error {
	args := []any{t.id, t.runAt, t.createdAt, t.priority, c.attempt, t.max, c.reason, t.taskType, t.payload, t.headers, pgerr.Text(c.err), c.failed}
	result, err := tx.ExecContext(ctx, s.sql(writeDeadSQL), append(append(args, t.optional.args()...), t.rowMax)...)
	return pg.One(result, err)
}

// forgetTasks deletes all that the journal has of tasks that are done.
func (s *store) forgetTasks(done []*row) string {
	if len(done) == 0 {
		return "SELECT 1"
	}
	var b strings.Builder
	for i, t := range done {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(t.id, 10))
	}
	return s.sql("DELETE FROM outbox.running WHERE task_id IN (" + b.String() + ")")
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
