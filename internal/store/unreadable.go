package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
)

// A task may be unreadable: damage on the disk is in its payload, which PostgreSQL stores out of
// line. A claim of several tasks fails as a whole then. The other columns can be read and changed.

// An UPDATE of other columns does not read the payload. The lock lets an Enqueue with the task's
// unique key see that the task waits.
const firstIDsSQL = `/* outbox: lock the tasks that a claim met */
SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1 AND (priority, attempt, task_id) >= ($2, $3, $4)
 ORDER BY priority, attempt, task_id LIMIT $5 FOR NO KEY UPDATE SKIP LOCKED`

const firstDueSQL = `/* outbox: lock the tasks that a claim by due time met */
SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1 AND (run_at, task_id) >= (timestamptz 'epoch' + $2::bigint * interval '1 microsecond', $3)
 ORDER BY run_at, task_id LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED`

const readSQL = `/* outbox: read tasks */
SELECT count(octet_length(concat_ws('', t.payload, outbox.rest(t)))) FROM outbox.task t WHERE t.task_id = ANY ($1::bigint[])`

const setAsideSQL = `/* outbox: set a task aside that cannot be read */
UPDATE outbox.task SET state = 'scheduled', run_at = clock_timestamp() + $2::bigint * interval '1 microsecond', last_error = $3 WHERE task_id = $1`

// SetAsideFor is how long a task is put off that cannot be read.
const SetAsideFor = time.Hour

// SetAside puts off the tasks that cannot be read among the first ready ones of a type, up to limit,
// from a place in its lane on. No attempt is counted. It returns why each cannot be read.
func (s *Store) SetAside(ctx context.Context, taskType string, at plan.Place, limit int) (unreadable map[int64]error, err error) {
	query, args := firstIDsSQL, []any{taskType, at.From.Priority, at.From.Attempt, at.From.TaskID, limit}
	if at.Due != nil {
		query, args = firstDueSQL, []any{taskType, *at.Due, at.From.TaskID, limit}
	}
	err = s.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		unreadable = map[int64]error{}
		if _, err := tx.ExecContext(ctx, "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off"); err != nil {
			return err
		}
		var ids []int64
		rows, err := tx.QueryContext(ctx, s.SQL(query), args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
			return err
		}
		return s.setAside(ctx, tx, ids, unreadable)
	})
	if err != nil {
		return nil, err
	}
	return unreadable, nil
}

// setAside puts off those of the tasks that cannot be read, which it finds by halves.
func (s *Store) setAside(ctx context.Context, tx *sql.Tx, ids []int64, unreadable map[int64]error) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT reads"); err != nil {
		return err
	}
	_, failed := tx.ExecContext(ctx, s.SQL(readSQL), pq.Array(ids))
	if failed == nil {
		_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT reads")
		return err
	}
	if !damage(failed) {
		return failed
	}
	if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT reads; RELEASE SAVEPOINT reads"); err != nil {
		return err
	}
	if n := len(ids); n > 1 {
		if err := s.setAside(ctx, tx, ids[:n/2], unreadable); err != nil {
			return err
		}
		return s.setAside(ctx, tx, ids[n/2:], unreadable)
	}
	unreadable[ids[0]] = failed
	text := pgerr.Text(fmt.Errorf("relay: the task cannot be read and is put off by %v: %w", SetAsideFor, failed))
	_, err := tx.ExecContext(ctx, s.SQL(setAsideSQL), ids[0], SetAsideFor.Microseconds(), text)
	return err
}

// damage reports whether err may be due to what a row holds. Rights and definitions, say, concern
// all rows.
func damage(err error) bool {
	code := pgerr.Code(err)
	return len(code) == 5 && slices.Contains([]string{"22", "54", "58", "XX"}, code[:2])
}
