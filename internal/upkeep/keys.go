package upkeep

import (
	"context"
	"database/sql"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pg"
)

// Unique keys outlive their tasks, as a claim does nothing with them. What is left is swept in
// pages, in the order of the table's primary key.
const (
	keyPage  = 1000
	keyPages = 10 // of one sweep
)

const keyPageSQL = `/* outbox: read a page of unique keys */
WITH page AS MATERIALIZED (
  SELECT task_type, key, task_id FROM outbox.unique_key
   WHERE (task_type, key) > ($1, $2) ORDER BY task_type, key LIMIT $3)
SELECT count(*), count(*) FILTER (WHERE (SELECT t.task_id FROM outbox.task t WHERE t.task_id = page.task_id) IS NULL),
       (SELECT p.task_type FROM page p ORDER BY p.task_type DESC, p.key DESC LIMIT 1),
       (SELECT p.key FROM page p ORDER BY p.task_type DESC, p.key DESC LIMIT 1)
  FROM page`

const lockKeysSQL = `/* outbox: lock unique keys of tasks that are gone */
SELECT k.ctid::text FROM outbox.unique_key k
 WHERE (task_type, key) > ($1, $2) AND (task_type, key) <= ($3, $4)
   AND (SELECT t.task_id FROM outbox.task t WHERE t.task_id = k.task_id) IS NULL
 ORDER BY task_type, key LIMIT $5 FOR UPDATE SKIP LOCKED`

// Seen from here, after the lock, the key may have a task that was committed meanwhile. A locked
// row stays where it is.
const DeleteKeysSQL = `/* outbox: delete unique keys of tasks that are gone */
DELETE FROM outbox.unique_key k WHERE k.ctid = ANY ($1::tid[])
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
