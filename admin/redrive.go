package admin

import (
	"context"
	"errors"
	"fmt"
)

// The function writes tasks with the owner's rights (schema/functions/redrive.sql), as an operator
// has no right to insert them.
const redriveChosenSQL = `/* outbox: redrive dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED)
SELECT task_id, died_us, chosen, written
  FROM outbox.redrive(ids => ARRAY(SELECT task_id FROM d), actor => %s, without_key => `

const (
	// redriveSQL leaves those whose key is another's.
	redriveSQL = redriveChosenSQL + `false) ORDER BY died_us, task_id`
	// redriveWithoutKeySQL takes their key from them.
	redriveWithoutKeySQL = redriveChosenSQL + `true) ORDER BY died_us, task_id`
)

const purgeSQL = `/* outbox: purge dead letters */
WITH d AS MATERIALIZED (
  SELECT task_id, died_at FROM outbox.dead_task WHERE %s FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, true, true
  FROM gone JOIN d USING (task_id) ORDER BY d.died_at, d.task_id`

// Redrive makes the dead letters that pass the filter tasks again, the oldest first. The zero
// DeadFilter is refused: see DeadFilter.All.
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
