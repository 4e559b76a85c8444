package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
)

// One statement moves the row, so it is in one place at any time. It arrives as scheduled and due,
// so that no trigger takes it for a new task, or as waiting behind others of its ordering key,
// until it is the head; its insert wakes the relays. Its unique key is its own again unless a task
// that is there has it, or got it since the statement began. Keys are locked in the order in which
// enqueues lock them, which is that of the payloads for keys made of these (only a payload that
// RunAgainWith replaced may be out of it). What the journal may still have of its runs would count
// as attempts, and a request to cancel it is from before. Without attempted_at it is counted as a
// task that came.
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
            task_type, payload, headers, last_error, ` + optionalColumns + `, timeline),
back AS (
  INSERT INTO outbox.task (task_id, run_at, created_at, attempted_at, priority, attempt, max_attempts, state,
         task_type, payload, headers, last_error, ` + optionalColumns + `, timeline)
  OVERRIDING SYSTEM VALUE
  SELECT task_id, now(), created_at, NULL, priority, 0, task_max_attempts, CASE WHEN ordering_key IS NULL THEN 'scheduled' ELSE 'waiting' END,
         task_type, payload, headers, last_error, ` + optionalColumns + `,
         outbox.add_events(timeline, jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('event', 'redriven', 'by', NULLIF(%s, '')))))
    FROM gone
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

const purgeSQL = `/* outbox: purge dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, true
  FROM gone JOIN d USING (task_id) ORDER BY d.died_at, d.task_id`

// Redrive makes a page of the dead letters that pass the filter tasks again, the oldest first, and
// returns their ids and where the next page begins. The zero Filter is refused: see Filter.All.
//
// They keep their ids, payloads and last errors, start at attempt 1, with the limit that they were
// enqueued with or that their handler has now, and are due at once, or as soon as no other task of
// their ordering key runs. A unique key is theirs again unless another task has it by now: then
// both run. Their timelines say that they were redriven, and by the Client's Actor. Dead letters that another transaction is moving or deleting are left out; they are not
// waited for.
//
// A page that searches by Error or Reason should have a Page.Look. After a rollback the page begins
// where it began before. Redriven tasks may die again: set DiedBefore, or the pages may never end.
// [Client.EveryPage] does both.
func (c *Client) Redrive(ctx context.Context, f Filter, p Page) (ids []int64, next string, err error) {
	return c.take(ctx, "redrive", redriveSQL, &c.options.Actor, f, p)
}

// Purge deletes a page of the dead letters that pass the filter, the oldest first. All else is as
// of [Client.Redrive]. For dead letters that are to go by themselves see
// relay.Config.DeadRetention.
func (c *Client) Purge(ctx context.Context, f Filter, p Page) (ids []int64, next string, err error) {
	return c.take(ctx, "purge", purgeSQL, nil, f, p)
}

// take takes a page of dead letters away. by is who acts, for a query that writes it.
func (c *Client) take(ctx context.Context, action, query string, by *string, f Filter, p Page) (ids []int64, next string, err error) {
	if err := f.checkChosen(action); err != nil {
		return nil, "", err
	}
	d, err := newDeadPage(f, p, maxRows, oldestFirst)
	if err != nil {
		return nil, "", err
	}
	d.by = by
	var last deadPlace
	err = c.act(ctx, func(q outbox.Querier) ([]Entry, error) {
		if err := d.findEnd(ctx, c, q); err != nil {
			return nil, err
		}
		query, args := d.statement(query, " ORDER BY "+d.order.words+" LIMIT %s", d.Limit)
		found, err := rows(ctx, q, c.schema.SQL(query), args, scanTaken)
		if err != nil {
			return nil, err
		}
		for _, last = range found {
			ids = append(ids, last.taskID)
		}
		if f.IDs != nil {
			return entriesOf(action, ids), nil
		}
		return []Entry{{Action: action, Target: "dead letters: " + f.String(), Count: int64(len(ids))}}, nil
	})
	if err != nil {
		return nil, "", failed(action, err)
	}
	return ids, d.next(len(ids), last), nil
}

var errDropped = errors.New("the task was not written (is there a trigger on outbox.task that drops rows?): roll back")

func scanTaken(row scanner, t *deadPlace) error {
	var arrived bool
	if err := row.Scan(&t.taskID, &t.diedAt, &arrived); err != nil {
		return err
	}
	if !arrived {
		return fmt.Errorf("task %d: %w", t.taskID, errDropped)
	}
	return nil
}
