package upkeep

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// A batch is kept for as long as it has a task: each of them was begun. Rows of living relays go
// too: a lost connection may commit its row after its relay has forgotten the run.
const reapRunsSQL = `/* outbox: reap runs of tasks that are gone */
DELETE FROM outbox.running r
 USING (SELECT task_id, token FROM outbox.running r
         WHERE (SELECT t.task_id FROM outbox.task t
                 WHERE t.task_id = ANY (COALESCE(r.task_ids, ARRAY[r.task_id])) LIMIT 1) IS NULL
         LIMIT 1000) AS gone
 WHERE r.task_id = gone.task_id AND r.token = gone.token AND (SELECT ` + pg.CommitAsync + `) IS NOT NULL`

// An hour after the last of its tasks was taken over.
const reapRelaysSQL = `/* outbox: reap relays that died long ago */
DELETE FROM outbox.relay l
 WHERE alive_until < clock_timestamp() AND taken_over_at < clock_timestamp() - interval '1 hour'
   AND relay_id <> $1::uuid
   AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.state = 'leased' AND t.relay_id = l.relay_id)
RETURNING ` + pg.CommitAsync

// reap is the job that deletes runs of tasks that are gone, and relays that died long ago.
func (p *Params) reap(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	return ReapInterval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if _, err := conn.ExecContext(ctx, p.Schema.SQL(reapRunsSQL)); err != nil {
			return err
		}
		_, err := conn.ExecContext(ctx, p.Schema.SQL(reapRelaysSQL), p.RelayID)
		return err
	})
}

// Unique keys outlive their tasks, as a claim does nothing with them. What is left, and is not kept for a
// time, is swept in pages, in the order of the table's primary key.
const (
	keyPage  = 1000
	keyPages = 10 // of one sweep
)

const keyPageSQL = `/* outbox: read a page of unique keys */
WITH page AS MATERIALIZED (
  SELECT task_type, key, task_id, (keep_until > now()) IS TRUE AS kept FROM outbox.unique_key
   WHERE (task_type, key) > ($1, $2) ORDER BY task_type, key LIMIT $3)
SELECT count(*), count(*) FILTER (WHERE NOT kept
         AND (SELECT t.task_id FROM outbox.task t WHERE t.task_id = page.task_id) IS NULL),
       (SELECT p.task_type FROM page p ORDER BY p.task_type DESC, p.key DESC LIMIT 1),
       (SELECT p.key FROM page p ORDER BY p.task_type DESC, p.key DESC LIMIT 1)
  FROM page`

const lockKeysSQL = `/* outbox: lock unique keys of tasks that are gone */
SELECT k.ctid::text FROM outbox.unique_key k
 WHERE (task_type, key) > ($1, $2) AND (task_type, key) <= ($3, $4) AND (keep_until > now()) IS NOT TRUE
   AND (SELECT t.task_id FROM outbox.task t WHERE t.task_id = k.task_id) IS NULL
 ORDER BY task_type, key LIMIT $5 FOR UPDATE SKIP LOCKED`

// Seen from here, after the lock, the key may have a task that was committed meanwhile. A locked
// row stays where it is.
const DeleteKeysSQL = `/* outbox: delete unique keys of tasks that are gone */
DELETE FROM outbox.unique_key k WHERE k.ctid = ANY ($1::tid[]) AND (k.keep_until > now()) IS NOT TRUE
   AND (SELECT t.task_id FROM outbox.task t WHERE t.task_id = k.task_id) IS NULL`

// keySweep is the job that deletes unique keys whose task is gone, and how far it has come.
type keySweep struct {
	schema pg.Schema
	after  uniqueKey
}

type uniqueKey struct{ taskType, key string }

// run deletes keys whose task is gone, from the next few pages. It goes on soon while at
// least a tenth of what it reads is such, so that they stay few beside those in use however many
// are made.
func (s *keySweep) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	read, gone := 0, 0
	for range keyPages {
		n, g, err := s.page(ctx, on)
		if err != nil {
			return 0, err
		}
		read, gone = read+n, gone+g
		if n < keyPage {
			s.after = uniqueKey{}
			break
		}
	}
	if gone > 0 && gone >= read/10 && read >= keyPage {
		return TakeoverInterval, nil
	}
	if read == 0 {
		return 2 * ReapInterval, nil // unique keys are not used
	}
	return ReapInterval, nil
}

// page sweeps the next page, and returns how many keys it read and of how many the task was
// gone.
func (s *keySweep) page(ctx context.Context, on *pg.Dedicated) (read, gone int, err error) {
	from := s.after
	var lastType, lastKey sql.NullString
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		return conn.QueryRowContext(ctx, s.schema.SQL(keyPageSQL), from.taskType, from.key, keyPage).
			Scan(&read, &gone, &lastType, &lastKey)
	})
	if err == nil && gone > 0 {
		err = on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			locked, err := pg.Texts(tx.QueryContext(ctx, s.schema.SQL(lockKeysSQL),
				from.taskType, from.key, lastType.String, lastKey.String, keyPage))
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, s.schema.SQL(DeleteKeysSQL), pq.Array(locked))
			return err
		})
	}
	if err == nil && read > 0 {
		s.after = uniqueKey{lastType.String, lastKey.String}
	}
	return read, gone, err
}

// One hop of the index for each type, however many tasks it has.
const unhandledSQL = `/* outbox: types that no living relay has a handler for */
WITH RECURSIVE ready AS (
  (SELECT task_type FROM outbox.task WHERE state = 'ready' ORDER BY task_type LIMIT 1)
  UNION ALL
  SELECT (SELECT t.task_type FROM outbox.task t WHERE t.state = 'ready' AND t.task_type > ready.task_type
           ORDER BY t.task_type LIMIT 1)
    FROM ready WHERE ready.task_type IS NOT NULL),
scheduled AS (
  (SELECT task_type FROM outbox.task WHERE state = 'scheduled' ORDER BY task_type LIMIT 1)
  UNION ALL
  SELECT (SELECT t.task_type FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type > scheduled.task_type
           ORDER BY t.task_type LIMIT 1)
    FROM scheduled WHERE scheduled.task_type IS NOT NULL),
unhandled AS (
  SELECT task_type FROM (SELECT task_type FROM ready UNION SELECT task_type FROM scheduled) AS known
   WHERE task_type IS NOT NULL AND task_type <> ALL ($1::text[])
     AND NOT EXISTS (SELECT 1 FROM outbox.relay l
                      WHERE l.alive_until > clock_timestamp() AND known.task_type = ANY (l.task_types))
   ORDER BY task_type LIMIT 100)
SELECT u.task_type, (SELECT count(*) FROM (
         (SELECT 1 FROM outbox.task t WHERE t.state = 'ready' AND t.task_type = u.task_type
           ORDER BY t.priority, t.attempt, t.task_id LIMIT 1000)
         UNION ALL
         (SELECT 1 FROM outbox.task t WHERE t.state = 'scheduled' AND t.task_type = u.task_type
           ORDER BY t.run_at LIMIT 1000)
         LIMIT 1000) AS found)
  FROM unhandled u`

// unhandledInterval is how often a type without a handler is reported.
const unhandledInterval = time.Minute

// reportUnhandled is the job that logs the task types that have tasks and no handler in any living
// relay. The tasks are left alone.
func (p *Params) reportUnhandled(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	return unhandledInterval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		rows, err := conn.QueryContext(ctx, p.Schema.SQL(unhandledSQL), pq.Array(p.Types))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var taskType string
			var n int
			if err := rows.Scan(&taskType, &n); err != nil {
				return err
			}
			atLeast := ""
			if n == 1000 {
				atLeast = " (counted up to 1000)"
			}
			p.Log.Warn("outbox: no relay has a handler for this task type; its tasks wait"+atLeast,
				"task_type", taskType, "tasks", n)
		}
		return rows.Err()
	})
}
