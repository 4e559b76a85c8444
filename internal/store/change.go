package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/timeline"
)

// Change is what becomes of a task that is not gone.
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

const putBackSQL = `/* outbox: write back */
SELECT outbox.put_back($1::jsonb, $2, $3, $4, $5::uuid[], $6::uuid, $7::jsonb)`

// In the transaction that removes a task its key is free, also one that is to be kept until it is
// done: a task that the handler enqueued there under that key follows it. If the task goes on after
// all, it has its key still, and the other one is dropped, as an Enqueue is skipped while the task
// runs. Nobody else has seen that task: it was created when the transaction began. It leaves no
// trace in the counts. A period of the task that goes on is over: else the other one had no key.
const keepKeySQL = `/* outbox: keep a key until done */
WITH follower AS MATERIALIZED (
  SELECT t.task_id FROM outbox.unique_key k JOIN outbox.task t ON t.task_id = k.task_id
   WHERE k.task_type = $1 AND k.key = $2 AND t.task_id <> $3 AND t.created_at = now()),
dropped AS (
  DELETE FROM outbox.task WHERE task_id = (SELECT task_id FROM follower) RETURNING task_type, state),
uncounted AS (
  INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) SELECT 0, -1, task_type, state FROM dropped)
UPDATE outbox.unique_key SET task_id = $3, keep_until = NULL
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

// ExpireSQL ends tasks that have expired.
const ExpireSQL = `/* outbox: end what has expired */
SELECT task_id, task_type, max, run_us, expires_us, begun, wrong
  FROM outbox.expire_tasks($1::text[], $2::integer[], $3::text[], $4, $5, $6, $7, $8, $9::jsonb)`

// Expiry says which expired tasks are to be ended: of the types, and with Others of those that no living
// relay has. They become dead letters by Dead, but for the types of Discarded.
type Expiry struct {
	Types       []string
	MaxAttempts []int64 // of each type's handler
	Discarded   []string
	Others      bool
	From        ExpiryPlace
	Limit       int
	Dead        Change
}

// ExpiryPlace is that of a task in the order of expiries: its time, in µs since 1970, and its id.
type ExpiryPlace struct{ Micros, TaskID int64 }

// FirstExpiry is before all.
var FirstExpiry = ExpiryPlace{Micros: -62135596800000000}

// Expired is what became of a page of expired tasks.
type Expired struct {
	Ended   []*Row
	Refused map[int64]string // PostgreSQL refuses what it would write; they stay
	Last    ExpiryPlace
	Empty   bool // there was none behind From
}

// Expire ends tasks that have expired.
func (s *Store) Expire(ctx context.Context, tx *sql.Tx, e Expiry) (out Expired, err error) {
	out = Expired{Refused: map[int64]string{}, Last: e.From, Empty: true}
	rows, err := tx.QueryContext(ctx, s.SQL(ExpireSQL), pq.Array(e.Types), pq.Array(e.MaxAttempts), pq.Array(e.Discarded),
		e.Others, e.From.Micros, e.From.TaskID, e.Limit, pgerr.Text(e.Dead.Err), s.Noted(e.Dead))
	if err != nil {
		return out, err
	}
	defer rows.Close()
	for rows.Next() {
		var r Row
		var begun bool
		var wrong sql.NullString
		if err := rows.Scan(&r.ID, &r.TaskType, &r.Max, &r.RunAt, &out.Last.Micros, &begun, &wrong); err != nil {
			return out, err
		}
		out.Last.TaskID, out.Empty = r.ID, false
		switch {
		case wrong.Valid:
			out.Refused[r.ID] = wrong.String
		case !begun:
			out.Ended = append(out.Ended, &r)
		}
	}
	return out, rows.Err()
}

const keepSQL = `/* outbox: keep */
SELECT outbox.keep($1::jsonb, $2, $3::uuid)`

// maxKeepText is how long the payloads of one statement may be together; a server takes 1 GiB.
const maxKeepText = 8 << 20

// Keep writes tasks that are done to the history, in the transaction that removes them, for them to
// stay there for the given time.
func (s *Store) Keep(ctx context.Context, c pg.Exclusive, keep time.Duration, done []*Row) error {
	for len(done) > 0 {
		n, size := 1, len(done[0].Payload)
		for n < len(done) && size+len(done[n].Payload) <= maxKeepText {
			size += len(done[n].Payload)
			n++
		}
		tasks, err := json.Marshal(finishedRows(done[:n]))
		if err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, s.SQL(keepSQL), string(tasks), keep.Microseconds(), s.RelayID); err != nil {
			return err
		}
		done = done[n:]
	}
	return nil
}

func finishedRows(done []*Row) []map[string]any {
	out := make([]map[string]any, len(done))
	for i, r := range done {
		changes := map[string]any{"attempt": min(r.Begun(), math.MaxInt16), "began_us": r.Began, "last_error": nil,
			"outcome": r.Finish.Outcome}
		if r.Finish.Result != "" {
			changes["result"] = json.RawMessage(r.Finish.Result)
		}
		if r.Finish.Err != nil {
			changes["last_error"] = pgerr.Text(r.Finish.Err)
		}
		if r.Lost > 0 { // the journal has these runs
			changes["living"], changes["claimed_attempt"] = nonNil(r.Undecided), r.Attempt
		}
		out[i] = r.handedBack(changes)
	}
	return out
}

// CompleteAndKeepSQL deletes leased tasks, and writes those to the history whose time there is not 0.
const CompleteAndKeepSQL = `/* outbox: complete leased tasks and keep them */
WITH gone AS (
  DELETE FROM outbox.task t
   WHERE t.task_id = ANY (ARRAY(SELECT unnest($1::bigint[]))) AND t.lease_token = ($2::uuid[])[width_bucket(t.task_id, $1::bigint[])]
  RETURNING t.task_id, to_jsonb(t) - '{leased_until,relay_id,lease_token,group_place}'::text[] AS task,
            ($3::bigint[])[width_bucket(t.task_id, $1::bigint[])] AS keep,
            ($4::text[])[width_bucket(t.task_id, $1::bigint[])] AS outcome,
            NULLIF(($5::text[])[width_bucket(t.task_id, $1::bigint[])], '') AS error,
            NULLIF(($6::text[])[width_bucket(t.task_id, $1::bigint[])], '')::jsonb AS result),
kept AS (
  INSERT INTO outbox.done_task
  SELECT d.* FROM gone CROSS JOIN LATERAL outbox.row_of(NULL::outbox.done_task, gone.task || jsonb_build_object(
         'state', 'finished', 'finished_at', clock_timestamp(), 'keep_until', clock_timestamp() + gone.keep * interval '1 microsecond',
         'outcome', gone.outcome, 'last_error', gone.error, 'result', gone.result),
         (SELECT outbox.lacking('outbox.done_task', task || '{"finished_at": null, "keep_until": null}') FROM gone LIMIT 1)) AS d
   WHERE gone.keep > 0
  ON CONFLICT (task_id) DO NOTHING)
SELECT task_id FROM gone`

// Ordering keys. A task with a key arrives as waiting (a trigger), and the head, the one that is
// first in its key, is made ready by whichever relay polls next: outbox.headless_key has a row for
// each key that a task came to or whose head went, visible exactly when that is. So claims know
// nothing of keys, enqueueing takes no lock, and nobody has to finish what a process that died
// began.

// One relay at a time: two could see different tasks as a key's head. One that freezes meanwhile
// lets go. The lock has a statement of its own, so that the next one's snapshot has what the relay
// before it committed. It turns sequential scans off: with statistics of a smaller table PostgreSQL would read
// all of headless_key for a page.
const LockHeadsSQL = `/* outbox: lock the promotion of heads */
SELECT set_config('idle_in_transaction_session_timeout', $1, true) || set_config('enable_seqscan', 'off', true) ||
       ` + pg.CommitAsync + ` FROM outbox.promote_lock FOR UPDATE SKIP LOCKED`

const newHeadsLockSQL = `/* outbox: the row that locks the promotion of heads */
INSERT INTO outbox.promote_lock DEFAULT VALUES ON CONFLICT DO NOTHING`

// The task that is next by this snapshot may be cancelled in an open transaction, so it is not
// waited for; its key keeps its row then. A head whose removal is not committed yet is still seen:
// its removal brings a row of its own. Rows of headless_key are never updated, so a ctid is theirs
// until they are deleted. The lock is FOR NO KEY UPDATE: an Enqueue with the task's unique key
// takes a task that it cannot lock FOR KEY SHARE for one that runs.
const PromoteHeadsSQL = `/* outbox: promote waiting tasks to heads */
WITH c AS MATERIALIZED (
  SELECT ctid FROM outbox.headless_key WHERE headless_key_id >= $2
   ORDER BY headless_key_id LIMIT $1 FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.headless_key WHERE ctid = ANY (ARRAY(SELECT ctid FROM c)) RETURNING task_type, ordering_key),
next AS MATERIALIZED (
  SELECT k.task_type, k.ordering_key, w.task_id
    FROM (SELECT DISTINCT task_type, ordering_key FROM gone) k
   CROSS JOIN LATERAL (
     SELECT task_id FROM outbox.task t
      WHERE t.task_type = k.task_type AND t.ordering_key = k.ordering_key AND t.state = 'waiting'
      ORDER BY t.task_type, t.ordering_key, t.task_id LIMIT 1) w
   WHERE (SELECT f.task_id FROM outbox.task f
      WHERE f.task_type = k.task_type AND f.ordering_key = k.ordering_key AND f.state <> 'waiting' LIMIT 1) IS NULL),
mine AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE task_id = ANY (ARRAY(SELECT task_id FROM next)) FOR NO KEY UPDATE SKIP LOCKED),
again AS (
  INSERT INTO outbox.headless_key (task_type, ordering_key)
  SELECT task_type, ordering_key FROM next WHERE task_id NOT IN (SELECT task_id FROM mine) RETURNING 1),
promoted AS (
  UPDATE outbox.task t SET state = CASE WHEN run_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END
   WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM mine)))
SELECT (SELECT count(*) FROM gone) - (SELECT count(*) FROM again),
       EXISTS (SELECT 1 FROM outbox.place_request WHERE place_request_id >= $2)`

// PromotePlacesSQL gives free places of group keys to tasks that wait, under the same lock.
const PromotePlacesSQL = `/* outbox: give places to waiting tasks */
SELECT outbox.promote_places($1, $2)`

// PromoteHeads makes the first of the waiting tasks of ordering keys without a head ready, or
// scheduled, and gives free places of group keys. It handles at most limit requests of each, from the
// given one on, and returns 0 if it did nothing.
func (s *Store) PromoteHeads(ctx context.Context, conn *sql.Conn, first int64, limit int) (did int, err error) {
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	if err := s.Conns.Guard(ctx, tx); err != nil {
		return 0, err
	}
	locked, err := pg.Texts(tx.QueryContext(ctx, s.SQL(LockHeadsSQL), pg.Millis(pg.Bookkeeping)))
	if err == nil && len(locked) == 0 { // another relay is at it, or somebody has emptied the table
		if _, err = tx.ExecContext(ctx, s.SQL(newHeadsLockSQL)); err == nil {
			locked, err = pg.Texts(tx.QueryContext(ctx, s.SQL(LockHeadsSQL), pg.Millis(pg.Bookkeeping)))
		}
	}
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	var places bool
	if err := tx.QueryRowContext(ctx, s.SQL(PromoteHeadsSQL), limit, first).Scan(&did, &places); err != nil {
		return 0, err
	}
	if places {
		var more int
		if err := tx.QueryRowContext(ctx, s.SQL(PromotePlacesSQL), first, limit).Scan(&more); err != nil {
			return 0, err
		}
		did += more
	}
	return did, tx.Commit()
}

// Keyed reports whether other tasks may wait for the end of this one.
func (r *Row) Keyed() bool { return r.uses().OrderingKey != nil || r.uses().GroupKey != nil }

const markHeadlessSQL = `/* outbox: mark a key that may have no head */
INSERT INTO outbox.headless_key (task_type, ordering_key) VALUES ($1, $2)`

// KeyAfter is the ordering key that a task keeps after a change. A task that its claim writes back
// with it is the head again before anybody sees it gone. Without it the key goes on.
func (r *Row) KeyAfter(c Change) *string {
	if r.uses().SkipFailed && c.Failed {
		return nil
	}
	return r.uses().OrderingKey
}

// Recording from outside the claim's transaction, which is gone: the task is back as it was, or
// still locked by a backend that has not noticed, or another relay has it already. Those locks are
// not waited for. The iteration and the payload are compared too, as attempt begins anew with each.
const LockBackSQL = `/* outbox: lock a task whose claim is gone */
SELECT 1 FROM outbox.task WHERE task_id = $1 AND attempt = $2 AND iterations = $3 AND payload = $4::jsonb AND state <> 'leased' FOR UPDATE SKIP LOCKED`

const deleteBackSQL = `/* outbox: take a task whose claim is gone */
DELETE FROM outbox.task WHERE task_id = $1`

const delaySQL = `/* outbox: delay a task whose claim is gone */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $2::bigint * interval '1 microsecond' WHERE task_id = $1`

// A run without a living relay is an attempt, for whoever claims the task next.
const orphanRunSQL = `/* outbox: let a run count as lost */
UPDATE outbox.running SET relay_id = '00000000-0000-0000-0000-000000000000' WHERE task_id = $1 AND token = $2::uuid`

// RecordAside writes what becomes of a task whose claim is gone, if it can be had.
func (s *Store) RecordAside(t *Row, next Change) (found bool, err error) {
	err = s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		if found, err = s.locked(ctx, tx, t); err != nil || !found {
			return err
		}
		if _, err := tx.ExecContext(ctx, s.SQL(deleteBackSQL), t.ID); err != nil {
			return err
		}
		if next.Reason != "" {
			return s.WriteDead(ctx, tx, t, next)
		}
		return s.WriteBack(ctx, tx, t, next)
	})
	return found, err
}

// OrphanRun lets a run count as lost, whoever claims its task next.
func (s *Store) OrphanRun(t *Row, token string) error {
	return s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, s.SQL(orphanRunSQL), t.ID, token)
		return err
	})
}

// Delay puts a task off whose claim is gone, if it can be had.
func (s *Store) Delay(ctx context.Context, t *Row, wait time.Duration) error {
	return s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if found, err := s.locked(ctx, tx, t); err != nil || !found {
			return err
		}
		_, err := tx.ExecContext(ctx, s.SQL(delaySQL), t.ID, wait.Microseconds())
		return err
	})
}

func (s *Store) locked(ctx context.Context, tx *sql.Tx, t *Row) (bool, error) {
	var found int
	err := tx.QueryRowContext(ctx, s.SQL(LockBackSQL), t.ID, t.Attempt, t.uses().Iterations, t.Payload).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// TransactionStatus is "committed" or "aborted": what became of a transaction that is not open any
// more.
func (s *Store) TransactionStatus(xid string) (status string, err error) {
	for try := range 10 {
		if try > 0 {
			time.Sleep(time.Duration(try) * 20 * time.Millisecond) // its backend has not noticed yet
		}
		status, err = s.StatusOf(xid)
		if err == nil && status != "in progress" {
			return status, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("relay: transaction %s is still %s", xid, status)
	}
	return "", err
}

// StatusOf is "in progress", "committed", "aborted" or, for a transaction that is long gone,
// "unknown".
func (s *Store) StatusOf(xid string) (status string, err error) {
	err = s.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT COALESCE(pg_catalog.pg_xact_status("+
			"$1::pg_catalog.text::pg_catalog.xid8), 'unknown')", xid).Scan(&status)
	})
	return status, err
}
