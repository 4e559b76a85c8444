package deadletter

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// One statement moves the row, so it is in one place at any time. It arrives as scheduled and due, so that no
// trigger takes it for a new task, or as waiting behind others of its ordering key, until it is the head; its insert wakes the
// relays. Its unique key is its own again unless a task that is there has it, or got it since the statement began. Keys are
// locked in the order in which enqueues lock them, which is that of the payloads for keys made of these (only a payload that
// RunAgainWith replaced may be out of it). What the journal may still have of its runs would count as attempts, and a request to
// cancel it is from before. Without attempted_at it is counted as a task that came.
const redriveSQL = `/* outbox: redrive dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
runs AS (
  DELETE FROM outbox.running WHERE task_id = ANY (ARRAY(SELECT task_id FROM d))),
asked AS (
  DELETE FROM outbox.cancel WHERE task_id = ANY (ARRAY(SELECT task_id FROM d))),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d))
  RETURNING task_id, created_at, priority, task_max_attempts,
            task_type, payload, headers, last_error, ` + optionalColumns + `),
back AS (
  INSERT INTO outbox.task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts, state,
         task_type, payload, headers, last_error, ` + optionalColumns + `)
  OVERRIDING SYSTEM VALUE
  SELECT task_id, now(), created_at, NULL, priority, 0, task_max_attempts, CASE WHEN ordering_key IS NULL THEN 'scheduled' ELSE 'waiting' END,
         task_type, payload, headers, last_error, ` + optionalColumns + ` FROM gone
  RETURNING task_id),
headless AS (
  INSERT INTO outbox.headless_key (task_type, ordering_key) SELECT DISTINCT task_type, ordering_key FROM gone WHERE ordering_key IS NOT NULL),
keys AS (
  INSERT INTO outbox.unique_key AS k (task_type, key, task_id)
  SELECT task_type, unique_key, task_id
    FROM (SELECT DISTINCT ON (task_type, unique_key) task_type, unique_key, task_id, payload, unique_key LIKE '$payload:%%' AS of_payload
            FROM gone WHERE unique_key IS NOT NULL ORDER BY task_type, unique_key, task_id DESC) AS n
   ORDER BY task_type COLLATE "C", CASE WHEN of_payload THEN '$payload' ELSE unique_key END COLLATE "C", CASE WHEN of_payload THEN payload END
  ON CONFLICT (task_type, key) DO UPDATE SET task_id = EXCLUDED.task_id
   WHERE k.task_id = (SELECT seen.task_id FROM outbox.unique_key seen WHERE seen.task_type = EXCLUDED.task_type AND seen.key = EXCLUDED.key)
     AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = k.task_id))
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, back.task_id IS NOT NULL
  FROM gone JOIN d USING (task_id) LEFT JOIN back USING (task_id) ORDER BY d.died_at, d.task_id`

// optionalColumns are columns that a dead letter has as its task had them.
const optionalColumns = `unique_key, unique_until_done, timeout_ms, iterations, ordering_key, skip_failed`

// Redrive makes dead letters tasks again, with one statement: they keep their ids, payloads and last errors, start at attempt 1,
// with the limit that they were enqueued with or that their handler has now, and are due at once, or as soon as no other task of
// their ordering key runs. A unique key is theirs again unless another task has it by now: then both run. It returns the ids of
// those that it moved, in the order of their deaths. The others are no dead letters, or another transaction is moving or deleting them
// at this moment; they are not waited for.
//
// On a transaction it commits with it; on a *sql.DB it is a transaction of its own, whose outcome can be
// outbox.ErrCommitUnknown. At most 1,000 ids; no ids is no statement. Errors: ErrInvalid, outbox.ErrNoTransaction for another
// kind of pool, and the server's.
func Redrive(ctx context.Context, q outbox.Querier, taskIDs []int64, opts ...Option) (moved []int64, err error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	if len(taskIDs) > maxRows {
		return nil, fmt.Errorf("%w: %d ids, at most %d in one call", ErrInvalid, len(taskIDs), maxRows)
	}
	if len(taskIDs) == 0 {
		return nil, nil
	}
	query := s.sql(fmt.Sprintf(redriveSQL, "task_id = ANY ($1::bigint[])"))
	err = inTx(ctx, q, func(q outbox.Querier) error {
		var found []moving
		found, err = move(ctx, q, query, pq.Array(taskIDs))
		for _, m := range found {
			moved = append(moved, m.TaskID)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deadletter: redrive: %w", err)
	}
	return moved, nil
}

// RedriveMany redrives all dead letters that pass the filter and died before the call, the oldest first; the zero Filter
// means all. See [Redrive] for what becomes of them, and [Count] to see first how many they are. perSecond bounds how many
// it moves in a second; 0 means as many as it can. Each transaction moves 1,000 at most.
//
// It returns how many it moved, also with an error, which ends it: ctx's when that ended; outbox.ErrCommitUnknown, after
// which the number may be that of one transaction less; the server's. It may be called again. Dead letters that another
// transaction is moving or deleting, and those whose death commits only during the call, may be left out.
func RedriveMany(ctx context.Context, db *sql.DB, f Filter, perSecond int, opts ...Option) (moved int64, err error) {
	if moved, err = many(ctx, db, f, perSecond, redriveSQL, opts); err != nil {
		err = fmt.Errorf("deadletter: redrive: %w", err)
	}
	return moved, err
}

// moving is a dead letter that a statement has taken: where it was in the order of deaths, in µs since 1970.
type moving struct {
	TaskID, diedAt int64
}

func (m moving) cursor() Cursor { return Cursor{time.UnixMicro(m.diedAt), m.TaskID} }

var errDropped = errors.New("the task was not written (is there a trigger on outbox.task that drops rows?): roll back")

// move runs a statement that takes dead letters away and returns them.
func move(ctx context.Context, q outbox.Querier, query string, args ...any) (out []moving, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m moving
		var arrived bool
		if err := rows.Scan(&m.TaskID, &m.diedAt, &arrived); err != nil {
			return nil, err
		}
		if !arrived {
			return nil, fmt.Errorf("task %d: %w", m.TaskID, errDropped)
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// inTx runs f on the caller's transaction, or in one of its own on a *sql.DB, through which database/sql could send a
// statement twice.
func inTx(ctx context.Context, q outbox.Querier, f func(outbox.Querier) error) error {
	if db, ok := q.(*sql.DB); ok && db != nil {
		return outbox.InTx(ctx, db, func(tx *sql.Tx) error {
			// Else it fails where the default is stricter and another transaction takes the same rows.
			if _, err := tx.ExecContext(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
				return err
			}
			return f(tx)
		})
	}
	if _, pool := q.(interface{ SetMaxOpenConns(int) }); pool || q == nil {
		return fmt.Errorf("%w: a %T is not one; of a *sqlx.DB pass the field DB", outbox.ErrNoTransaction, q)
	}
	return f(q)
}
