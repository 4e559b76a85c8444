package store

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/internal/pg"
)

// Ordering keys. A task with a key arrives as waiting (a trigger), and the head, the one that is
// first in its key, is made ready by whichever relay polls next: outbox.headless_key has a row for
// each key that a task came to or whose head went, visible exactly when that is. So claims know
// nothing of keys, enqueueing takes no lock, and nobody has to finish what a process that died
// began.

// One relay at a time: two could see different tasks as a key's head. One that freezes meanwhile
// lets go. The lock has a statement of its own, so that the next one's snapshot has what the relay
// before it committed.
const LockHeadsSQL = `/* outbox: lock the promotion of heads */
SELECT set_config('idle_in_transaction_session_timeout', $1, true) || ` + pg.CommitAsync + ` FROM outbox.promote_lock FOR UPDATE SKIP LOCKED`

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
SELECT (SELECT count(*) FROM gone) - (SELECT count(*) FROM again)`

// PromoteHeads makes the first of the waiting tasks of keys without a head ready, or scheduled, and
// returns how many requests are met: at most limit, from the given one on.
func (s *Store) PromoteHeads(ctx context.Context, conn *sql.Conn, first int64, limit int) (met int, err error) {
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
	if err := tx.QueryRowContext(ctx, s.SQL(PromoteHeadsSQL), limit, first).Scan(&met); err != nil {
		return 0, err
	}
	return met, tx.Commit()
}

func (r *Row) Ordered() bool { return r.uses().OrderingKey != nil }

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
