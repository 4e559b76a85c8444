package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/handlers"
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

// after is the change of a task that a result asks for, when begun attempts were begun.
func (r *runner) after(h *handlers.Handler, t *row, result *handlers.Result, begun int) taskChange {
	c := taskChange{attempt: min(begun, math.MaxInt16), err: result.Err, keep: t.undecided, failed: true}
	switch result.Action {
	case handlers.ActionSnooze:
		return taskChange{attempt: begun - 1, wait: result.Wait, keep: t.undecided}
	case handlers.ActionRunAgain:
		return taskChange{wait: result.Wait, again: true, payload: string(result.Payload)}
	case handlers.ActionDead:
		c.reason = reasonHandler
		return c
	}
	if begun >= t.max {
		c.reason, c.attempt = reasonAttempts, min(begun, t.max)
		return c
	}
	if c.wait = result.Wait; c.wait > 0 {
		return c
	}
	var stop bool
	if c.wait, stop = r.backoff(h, begun); stop {
		c.reason = reasonHandler
	}
	return c
}

// backoff is how long a task waits after the given number of attempts failed, and whether its
// Backoff says stop.
func (r *runner) backoff(h *handlers.Handler, attempts int) (wait time.Duration, stop bool) {
	wait, stop, err := h.Backoff(attempts)
	if err != nil {
		r.log.Error("outbox: Backoff panicked; the task waits by the default backoff", "task_type", h.Type, "attempt", attempts, "wait", wait, "error", pgerr.Text(err))
	}
	return wait, stop
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

// Recording from outside the claim's transaction, which is gone: the task is back as it was, or
// still locked by a backend that has not noticed, or another relay has it already. Those locks are
// not waited for. The iteration is compared too, as attempt begins anew with each.
const lockBackSQL = `/* outbox: lock a task whose claim is gone */
SELECT 1 FROM outbox.task WHERE task_id = $1 AND attempt = $2 AND iterations = $3 AND state <> 'leased' FOR UPDATE SKIP LOCKED`

const deleteBackSQL = `/* outbox: take a task whose claim is gone */
DELETE FROM outbox.task WHERE task_id = $1`

const delaySQL = `/* outbox: delay a task whose claim is gone */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE task_id = $1`

// A run without a living relay is an attempt, for whoever claims the task next.
const orphanRunSQL = `/* outbox: let a run count as lost */
UPDATE outbox.running SET relay_id = '00000000-0000-0000-0000-000000000000' WHERE task_id = $1 AND token = $2::uuid`

// outOfBand records a failed attempt in a transaction of its own. cause, if any, is why it had to.
func (a *attempt) outOfBand(handlerErr, cause error) error {
	if len(a.rows) > 1 {
		// The failure may be any member's: they run one by one, where it counts.
		a.r.journal.markLost(a.runs)
		a.watch.all(PutOff)
		return cause
	}
	t, result := a.rows[0], handlers.ResultOf(handlerErr)
	next := a.r.after(a.h, t, result, t.begun())
	for try := range 6 {
		if try > 0 {
			pause(time.Duration(try*try) * 20 * time.Millisecond) // the backend is about to notice
		}
		found := false
		err := a.conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
			if found, err = a.store.locked(ctx, tx, t); err != nil || !found {
				return err
			}
			if _, err := tx.ExecContext(ctx, a.sql(deleteBackSQL), t.id); err != nil {
				return err
			}
			if next.reason != "" {
				return a.writeDead(ctx, tx, t, next)
			}
			return a.writeBack(ctx, tx, t, next)
		})
		if err == nil && found {
			a.watch.change(t.id, next)
			a.watch.confirm()
			if next.reason != "" {
				a.r.died(t, next)
			}
			a.r.due(next.wait)
			return cause
		}
	}
	if result.Action == handlers.ActionSnooze {
		a.r.journal.forgetRuns(a.runs) // no attempt
		return cause
	}
	err := a.conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, a.sql(orphanRunSQL), t.id, a.runs.token)
		return err
	})
	if err == nil {
		a.watch.all(Retry)
	}
	return errors.Join(cause, err)
}

// delay puts a task off whose claim is gone, if it can be had.
func (s *store) delay(ctx context.Context, t *row, wait time.Duration) error {
	return s.conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if found, err := s.locked(ctx, tx, t); err != nil || !found {
			return err
		}
		_, err := tx.ExecContext(ctx, s.sql(delaySQL), t.id, wait.Microseconds())
		return err
	})
}

func (s *store) locked(ctx context.Context, tx *sql.Tx, t *row) (bool, error) {
	var found int
	err := tx.QueryRowContext(ctx, s.sql(lockBackSQL), t.id, t.attempt, t.iterations).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// transactionStatus is "committed" or "aborted": what became of a transaction that is not open any
// more.
func (s *store) transactionStatus(xid string) (status string, err error) {
	for try := range 10 {
		if try > 0 {
			pause(time.Duration(try) * 20 * time.Millisecond) // its backend has not noticed yet
		}
		status, err = s.statusOf(xid)
		if err == nil && status != "in progress" {
			return status, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("relay: transaction %s is still %s", xid, status)
	}
	return "", err
}

// statusOf is "in progress", "committed", "aborted" or, for a transaction that is long gone,
// "unknown".
func (s *store) statusOf(xid string) (status string, err error) {
	err = s.conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COALESCE(pg_xact_status($1::text::xid8), 'unknown')", xid).Scan(&status)
	})
	return status, err
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// pause waits for d.
func pause(d time.Duration) { <-time.After(d) }
