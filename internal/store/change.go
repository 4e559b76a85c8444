package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/timeline"
)

// Change is what becomes of a task that is not done.
type Change struct {
	Attempt        int
	Wait           time.Duration
	Err            error         // nil keeps the last one
	Unlisted       bool          // Err is the last error only: the timeline does not grow
	Reason         outbox.Reason // why it is a dead letter; "" if it is none
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

const putBackSQL = `/* outbox: write back */
SELECT outbox.put_back($1::jsonb, $2, $3, $4, $5::uuid[], $6::uuid, $7::jsonb)`

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
	uses, key := t.uses(), t.KeyAfter(c)
	changes := map[string]any{"attempt": c.Attempt, "state": "scheduled", "ordering_key": key}
	if c.Err != nil {
		changes["last_error"] = pgerr.Text(c.Err)
	}
	if c.Again {
		changes["last_error"], changes["timeline"] = nil, nil
		changes["iterations"] = min(uses.Iterations+1, math.MaxInt32)
		if c.Payload != "" {
			changes["payload"] = json.RawMessage(c.Payload)
		}
	}
	if uses.UniqueUntilDone && uses.UniqueKey != nil && !c.ClaimCommitted {
		if _, err := tx.ExecContext(ctx, s.SQL(keepKeySQL), t.TaskType, uses.UniqueKey, t.ID); err != nil {
			return err
		}
	}
	if c.ClaimCommitted && key != nil {
		changes["state"] = "waiting"
		if _, err := tx.ExecContext(ctx, s.SQL(markHeadlessSQL), t.TaskType, key); err != nil {
			return err
		}
	}
	if changes["untried"] = c.Untried; !c.Untried {
		changes["began_us"] = t.Began
	}
	return s.handBack(ctx, tx, putBackSQL, t, changes, c.Wait.Microseconds(), c, c.Keep)
}

const burySQL = `/* outbox: dead letter */
SELECT outbox.bury($1::jsonb, $2, $3, $4, $5::uuid[], $6::uuid, $7::jsonb)`

// WriteDead inserts a deleted task into the dead letters.
func (s *Store) WriteDead(ctx context.Context, tx Execer, t *Row, c Change) error {
	changes := map[string]any{"attempt": c.Attempt, "reason": c.Reason, "last_error": pgerr.Text(c.Err)}
	return s.handBack(ctx, tx, burySQL, t, changes, int64(t.Max), c, t.Undecided)
}

func (s *Store) handBack(ctx context.Context, tx Execer, query string, t *Row, changes map[string]any, number int64, c Change, living []string) error {
	task, err := json.Marshal(t.handedBack(changes))
	if err != nil {
		return err
	}
	return pg.One(tx.ExecContext(ctx, s.SQL(query), string(task), number, c.Failed, t.Attempt, pq.Array(nonNil(living)), s.lostTo(t), s.Noted(c)))
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
	e := timeline.Event{Event: timeline.Failed, Attempt: c.Attempt, Relay: s.RelayID, Micros: c.Took.Microseconds(), Error: cut(pgerr.Text(c.Err)), Reason: string(c.Reason)}
	switch {
	case c.Throttled:
		e.Event, e.Attempt = timeline.Throttled, c.Attempt+1
	case c.Reason != "" && !c.Failed:
		e.Event = timeline.Dead
	case !c.Failed:
		e.Attempt++ // it is not counted
	}
	if s.Ahead > 0 {
		at := time.Now().Add(s.Ahead)
		e.At = &at
	}
	text, err := json.Marshal([]timeline.Event{e})
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
