package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
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

// Bulk says how [Client.Redrive] and [Client.Purge] take dead letters. The zero value means all that
// pass the filter, at full speed.
type Bulk struct {
	// After is BulkResult.Next of a call that ended early; "" begins with the oldest.
	After string
	// Limit is the most dead letters that one call takes, including skipped ones; 0 is no limit.
	Limit int
	// PerSecond is the most dead letters redriven or purged a second; 0 is no limit.
	PerSecond int
	// Timeout bounds each transaction; 0 is no bound.
	Timeout time.Duration
	// WithoutKey makes Redrive run also dead letters whose unique key another task holds, as tasks
	// without a unique key. Purge refuses it.
	WithoutKey bool
	// Progress is called after each transaction with the result so far. If it returns false, the
	// call ends without an error.
	Progress func(BulkResult) bool
}

func (o Bulk) check() error {
	switch {
	case o.Limit < 0:
		return invalid("Bulk.Limit: %d: must not be negative; 0 is no limit", o.Limit)
	case o.PerSecond < 0:
		return invalid("Bulk.PerSecond: %d: must not be negative; 0 is no limit", o.PerSecond)
	case o.Timeout < 0:
		return invalid("Bulk.Timeout: %v: must not be negative; 0 is no bound", o.Timeout)
	}
	return nil
}

// BulkResult is what became of dead letters; the oldest are first. An id takes 8 bytes of memory.
type BulkResult struct {
	IDs     []int64 // redriven or purged
	Skipped []int64 // left by Redrive: another task holds their unique key
	Next    string  // Bulk.After to go on; "": none is left
}

func (r BulkResult) size() int { return len(r.IDs) + len(r.Skipped) }

// pageScan is the most dead letters that one transaction of a search reads.
const pageScan = 10_000

// bulk is an action on dead letters, and its next page.
type bulk struct {
	action Action
	query  string
	by     *string // who acts, for a query that writes it
	page   deadPage
}

// bulk acts on all dead letters that pass the filter, page by page.
func (c *Client) bulk(ctx context.Context, b bulk, f DeadFilter, o Bulk) (r BulkResult, err error) {
	if err := cmp.Or(f.checkChosen(b.action), o.check()); err != nil {
		return r, err
	}
	q := DeadQuery{Filter: f, After: o.After, Limit: maxRows, MaxScan: pageScan}
	if o.PerSecond > 0 {
		q.Limit = min(max(o.PerSecond/10, 1), maxRows)
	}
	if b.page, err = newDeadPage(q, maxRows, oldestFirst); err != nil {
		return r, err
	}
	b.page.by, r.Next = b.by, o.After
	for start := time.Now(); ; {
		if o.Limit > 0 {
			b.page.Limit = min(b.page.Limit, o.Limit-r.size())
		}
		if err := c.takePage(ctx, &b, o.Timeout, &r); err != nil {
			return r, failed(string(b.action), err)
		}
		more := o.Progress == nil || o.Progress(r)
		if r.Next == "" || !more || o.Limit > 0 && r.size() >= o.Limit {
			return r, nil
		}
		if o.PerSecond == 0 {
			continue
		}
		due := start.Add(time.Duration(float64(len(r.IDs)) / float64(o.PerSecond) * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

const nowSQL = `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`

// takePage acts on a page, in one transaction. Then it adds its result, and sets the next page.
func (c *Client) takePage(ctx context.Context, b *bulk, timeout time.Duration, r *BulkResult) (err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	defer func() {
		// PostgreSQL only says that it canceled a statement.
		if ended := ctx.Err(); err != nil && ended != nil && !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
	}()
	page, ids, skipped := &b.page, []int64(nil), []int64(nil)
	var found []takenLetter
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		if page.before == 0 { // a redriven task may die again meanwhile, and must not be redriven for ever
			if err := q.QueryRowContext(ctx, nowSQL).Scan(&page.before); err != nil {
				return nil, err
			}
			page.before++
		}
		if err := page.findEnd(ctx, c, q); err != nil {
			return nil, err
		}
		query, args := page.statement(b.query, page.limited(), page.Limit)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scanTaken)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			if l.skipped {
				skipped = append(skipped, l.taskID)
			} else {
				ids = append(ids, l.taskID)
			}
		}
		if page.Filter.IDs != nil {
			return entriesOf(b.action, ids), nil
		}
		return []AuditEntry{{Action: b.action, Target: "dead letters: " + page.Filter.String(), Count: int64(len(ids))}}, nil
	})
	if err != nil {
		return err
	}
	page.after, page.until = page.until, deadPlace{}
	if len(found) == page.Limit {
		page.after = found[len(found)-1].deadPlace
	}
	r.IDs, r.Skipped, r.Next = append(r.IDs, ids...), append(r.Skipped, skipped...), page.after.String()
	return nil
}

// Cancel cancels tasks, in one transaction, and returns the result of each, in their order. See
// [outbox.Cancel].
func (c *Client) Cancel(ctx context.Context, taskIDs []int64) ([]outbox.CancelResult, error) {
	results, err := changeEach(ctx, c, ActionCancel, taskIDs, outbox.Cancel, outbox.CancelNotFound)
	return results, failed("cancel", err)
}

// RunNow makes scheduled tasks due at once, in one transaction, and returns the result of each, in
// their order. See [outbox.RunNow].
func (c *Client) RunNow(ctx context.Context, taskIDs []int64) ([]outbox.RunNowResult, error) {
	results, err := changeEach(ctx, c, ActionRunNow, taskIDs, outbox.RunNow, outbox.RunNowNotScheduled)
	return results, failed("run now", err)
}

const retryNowSQL = `/* outbox: run retrying tasks now */
WITH retrying AS MATERIALIZED (
  SELECT t.task_id FROM outbox.task t
   WHERE t.state = 'scheduled' AND t.attempt > 0 AND t.task_type = $1
     AND COALESCE(t.attempted_at, t.created_at) <= timestamptz 'epoch' + $2::bigint * interval '1 microsecond'
   ORDER BY t.run_at LIMIT $3)
SELECT count(*) FILTER (WHERE outbox.run_task_now(r.task_id)) FROM retrying AS r`

// RetryNow makes the retrying tasks of a type due at once, those that are due first first, and returns
// how many. It leaves those that another transaction has locked, and those whose attempt began
// after the call did. It ends where each of the next 1,000 is locked.
//
// It works in transactions of 1,000 tasks, with an audit entry each. On a Client that In returned,
// all of it is in that transaction. With an error the number is that of the transactions before.
func (c *Client) RetryNow(ctx context.Context, taskType string) (due int64, err error) {
	if taskType == "" {
		return 0, invalid("RetryNow: the task type is empty")
	}
	if err := checkText("RetryNow", taskType); err != nil {
		return 0, err
	}
	var began, n int64
	for {
		err := c.act(ctx, func(q outbox.Querier) (_ []AuditEntry, err error) {
			if began == 0 { // what fails meanwhile must not run again and again
				if err = q.QueryRowContext(ctx, nowSQL).Scan(&began); err != nil {
					return nil, err
				}
			}
			err = q.QueryRowContext(ctx, c.schema.SQL(retryNowSQL), taskType, began, maxRows).Scan(&n)
			return []AuditEntry{{Action: ActionRunNow, Target: "retrying tasks: type " + taskType, Count: n}}, err
		})
		if err != nil || n == 0 {
			return due, failed("retry now", err)
		}
		due += n
	}
}

// changeEach changes tasks, and writes an entry with those whose result is not none.
func changeEach[R comparable](ctx context.Context, c *Client, action Action, taskIDs []int64,
	change func(context.Context, outbox.Querier, int64, ...outbox.SchemaOption) (R, error), none R,
) (results []R, err error) {
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		var changed []int64
		for _, id := range taskIDs {
			r, err := change(ctx, q, id, outbox.Schema(string(c.schema)))
			if err != nil {
				return nil, err
			}
			if results = append(results, r); r != none {
				changed = append(changed, id)
			}
		}
		return entriesOf(action, changed), nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}
