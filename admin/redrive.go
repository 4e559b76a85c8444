package admin

import (
	"context"
	"errors"
	"fmt"
)

// One statement moves the row, so it is in one place at any time. It arrives as scheduled and due,
// so that no trigger takes it for a new task, or as waiting behind others of its ordering key,
// until it is the head; its insert wakes the relays. What the journal may still have of its runs
// would count as attempts, and a request to cancel it is from before. Without attempted_at it is
// counted as a task that came.
//
// A dead letter takes its unique key first, by the rules of take_key. The key is another's if its
// row has changed since the statement began, or names a task that waits, or one that keeps its key
// until it is done. Of several dead letters with one key the first to die takes it. Keys are locked
// in the order in which enqueues lock them, which is that of the payloads for keys made of these
// (only a payload that RunAgainWith replaced may be out of it).
const takeKeysSQL = `/* outbox: redrive dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at, task_type, payload, unique_key FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
keys AS MATERIALIZED (
  INSERT INTO outbox.unique_key AS k (task_type, key, task_id)
  SELECT task_type, unique_key, task_id
    FROM (SELECT DISTINCT ON (task_type, unique_key) task_type, unique_key, task_id, payload,
                 unique_key LIKE '$payload:%%' AS of_payload
            FROM d WHERE unique_key IS NOT NULL ORDER BY task_type, unique_key, died_at, task_id) AS n
   ORDER BY task_type COLLATE "C", CASE WHEN of_payload THEN '$payload' ELSE unique_key END COLLATE "C",
            CASE WHEN of_payload THEN payload END
  ON CONFLICT (task_type, key) DO UPDATE SET task_id = EXCLUDED.task_id
   WHERE k.ctid = (SELECT seen.ctid FROM outbox.unique_key seen
                    WHERE seen.task_type = EXCLUDED.task_type AND seen.key = EXCLUDED.key)
     AND (SELECT t.unique_until_done FROM outbox.task t WHERE t.task_id = k.task_id) IS NOT TRUE
     AND NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = k.task_id AND t.state <> 'leased'
                        FOR KEY SHARE SKIP LOCKED)
  RETURNING task_id),
chosen AS (
  SELECT task_id FROM d`

const (
	// redriveSQL leaves those whose key is another's.
	redriveSQL = takeKeysSQL + ` WHERE unique_key IS NULL OR task_id IN (SELECT task_id FROM keys)` + redriveChosenSQL
	// redriveWithoutKeySQL takes their key from them.
	redriveWithoutKeySQL = takeKeysSQL + redriveChosenSQL
)

const redriveChosenSQL = `),
runs AS (
  DELETE FROM outbox.running WHERE task_id = ANY (ARRAY(SELECT task_id FROM chosen))),
asked AS (
  DELETE FROM outbox.cancel WHERE task_id = ANY (ARRAY(SELECT task_id FROM chosen))),
gone AS (
  DELETE FROM outbox.dead_task d WHERE task_id = ANY (ARRAY(SELECT task_id FROM chosen))
  RETURNING task_id, task_type, ordering_key, timeline, to_jsonb(d) AS task),
back AS (
  INSERT INTO outbox.task OVERRIDING SYSTEM VALUE
  SELECT t.* FROM gone CROSS JOIN LATERAL
         outbox.row_of(NULL::outbox.task, gone.task || jsonb_build_object(
         'run_at', now(), 'attempted_at', NULL, 'attempt', 0, 'max_attempts', gone.task -> 'task_max_attempts',
         'state', CASE WHEN gone.ordering_key IS NULL THEN 'scheduled' ELSE 'waiting' END,
         'unique_key', CASE WHEN gone.task_id IN (SELECT task_id FROM keys) THEN gone.task -> 'unique_key' END,
         'timeline', outbox.add_events(gone.timeline, jsonb_build_array(jsonb_strip_nulls(
           jsonb_build_object('event', 'redriven', 'by', NULLIF(%s, '')))))),
         (SELECT outbox.lacking('outbox.task', task) FROM gone LIMIT 1)) AS t
  RETURNING task_id),
headless AS (
  INSERT INTO outbox.headless_key (task_type, ordering_key)
  SELECT DISTINCT task_type, ordering_key FROM gone WHERE ordering_key IS NOT NULL)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, gone.task_id IS NOT NULL, back.task_id IS NOT NULL
  FROM d LEFT JOIN gone USING (task_id) LEFT JOIN back USING (task_id) ORDER BY d.died_at, d.task_id`

const purgeSQL = `/* outbox: purge dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, true, true
  FROM gone JOIN d USING (task_id) ORDER BY d.died_at, d.task_id`

// Redrive makes the dead letters that pass the filter tasks again, the oldest first. The zero DeadFilter
// is refused: see DeadFilter.All.
//
// They start at attempt 1, with the limit that they were enqueued with or that their handler has
// now, and are due at once, or as soon as no other task of their ordering key runs. They keep
// all else, as their ids, payloads and last errors. Their timelines say that they were redriven, and
// by the Client's Actor.
//
// A unique key is theirs again. If another task holds it by now, so that an Enqueue of that key
// would be skipped, the dead letter stays as it is, and is in BulkResult.Skipped. Of dead letters
// with one key the first to die is redriven. Bulk.WithoutKey redrives the others too.
//
// It works in transactions of 1,000 dead letters, with an audit entry each. On a Client that In
// returned, all of it is in that transaction: bound it by Bulk.Limit. It leaves out dead letters that
// died after it began, and those that another transaction moves or deletes; it does not wait for
// them. It may leave out those whose death commits meanwhile.
//
// With an error the result is that of the transactions before. The error is ctx's, the server's, or
// outbox.ErrCommitUnknown, after which one transaction more may have committed. It may be called
// again.
func (c *Client) Redrive(ctx context.Context, f DeadFilter, o Bulk) (BulkResult, error) {
	query := redriveSQL
	if o.WithoutKey {
		query = redriveWithoutKeySQL
	}
	return c.bulk(ctx, bulk{action: ActionRedrive, query: query, by: &c.config.Actor}, f, o)
}

// Purge deletes the dead letters that pass the filter, the oldest first. All else is as of
// [Client.Redrive], but it skips none. For dead letters that are to go by themselves see
// relay.Config.DeadRetention.
func (c *Client) Purge(ctx context.Context, f DeadFilter, o Bulk) (BulkResult, error) {
	if o.WithoutKey {
		return BulkResult{}, invalid("Bulk.WithoutKey: Purge takes dead letters with their keys")
	}
	return c.bulk(ctx, bulk{action: ActionPurge, query: purgeSQL}, f, o)
}

// takenLetter is a dead letter of a page: redriven, purged or skipped.
type takenLetter struct {
	deadPlace
	skipped bool
}

var errDropped = errors.New("the task was not written (is there a trigger on outbox.task that drops rows?): roll back")

func scanTaken(row scanner, l *takenLetter) error {
	var chosen, arrived bool
	if err := row.Scan(&l.taskID, &l.diedAt, &chosen, &arrived); err != nil {
		return err
	}
	if l.skipped = !chosen; chosen && !arrived {
		return fmt.Errorf("task %d: %w", l.taskID, errDropped)
	}
	return nil
}
