package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox"
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
         jsonb_populate_record(NULL::outbox.task, outbox.with_defaults(gone.task || jsonb_build_object(
         'run_at', now(), 'attempted_at', NULL, 'attempt', 0, 'max_attempts', gone.task -> 'task_max_attempts',
         'state', CASE WHEN gone.ordering_key IS NULL THEN 'scheduled' ELSE 'waiting' END,
         'unique_key', CASE WHEN gone.task_id IN (SELECT task_id FROM keys) THEN gone.task -> 'unique_key' END,
         'timeline', outbox.add_events(gone.timeline, jsonb_build_array(jsonb_strip_nulls(
           jsonb_build_object('event', 'redriven', 'by', NULLIF(%s, '')))))),
         (SELECT outbox.lacking('outbox.task', task) FROM gone LIMIT 1))) AS t
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

// Taken is what became of a page of dead letters; the oldest are first.
type Taken struct {
	IDs     []int64 // redriven or purged
	Skipped []int64 // left by Redrive: another task holds their unique key
}

// Redrive makes a page of the dead letters that pass the filter tasks again, the oldest first. next
// is where the next page begins. The zero Filter is refused: see Filter.All.
//
// They start at attempt 1, with the limit that they were enqueued with or that their handler has
// now, and are due at once, or as soon as no other task of their ordering key runs. They keep
// all else, as their ids, payloads and last errors. Their timelines say that they were redriven, and
// by the Client's Actor. Dead letters that another transaction is moving or deleting are left out;
// they are not waited for.
//
// A unique key is theirs again. If another task holds it by now, so that an Enqueue of that key
// would be skipped, the dead letter stays as it is, and is in Taken.Skipped. Of dead letters with
// one key the first to die is redriven. [Client.RedriveWithoutKey] runs the others too.
//
// A page that searches by a field without an index should have a Page.MaxScan. After a rollback the
// page begins where it began before. Redriven tasks may die again: set DiedBefore, or the pages may
// never end. [Client.EveryPage] does both.
func (c *Client) Redrive(ctx context.Context, f Filter, p Page) (t Taken, next string, err error) {
	return c.take(ctx, "redrive", redriveSQL, &c.options.Actor, f, p)
}

// RedriveWithoutKey is [Client.Redrive], but a dead letter whose unique key another task holds is
// redriven as a task without a unique key. It skips none.
func (c *Client) RedriveWithoutKey(ctx context.Context, f Filter, p Page) (t Taken, next string, err error) {
	return c.take(ctx, "redrive", redriveWithoutKeySQL, &c.options.Actor, f, p)
}

// Purge deletes a page of the dead letters that pass the filter, the oldest first. All else is as
// of [Client.Redrive], but it skips none. For dead letters that are to go by themselves see
// relay.Config.DeadRetention.
func (c *Client) Purge(ctx context.Context, f Filter, p Page) (t Taken, next string, err error) {
	return c.take(ctx, "purge", purgeSQL, nil, f, p)
}

// take takes a page of dead letters away. by is who acts, for a query that writes it.
func (c *Client) take(
	ctx context.Context, action, query string, by *string, f Filter, p Page,
) (t Taken, next string, err error) {
	if err := f.checkChosen(action); err != nil {
		return Taken{}, "", err
	}
	d, err := newDeadPage(f, p, maxRows, oldestFirst)
	if err != nil {
		return Taken{}, "", err
	}
	d.by = by
	var found []takenLetter
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		if err := d.findEnd(ctx, c, q); err != nil {
			return nil, err
		}
		query, args := d.statement(query, " ORDER BY "+d.order.words+" LIMIT %s", d.Limit)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scanTaken)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			if l.skipped {
				t.Skipped = append(t.Skipped, l.taskID)
			} else {
				t.IDs = append(t.IDs, l.taskID)
			}
		}
		if f.IDs != nil {
			return entriesOf(action, t.IDs), nil
		}
		return []AuditEntry{{Action: action, Target: "dead letters: " + f.String(), Count: int64(len(t.IDs))}}, nil
	})
	if err != nil {
		return Taken{}, "", failed(action, err)
	}
	var last deadPlace
	if len(found) > 0 {
		last = found[len(found)-1].deadPlace
	}
	return t, d.next(len(found), last), nil
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
