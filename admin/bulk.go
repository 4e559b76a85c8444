package admin

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// The function writes tasks with the owner's rights (schema/functions/redrive.sql), as an operator
// has no right to insert them.
const redriveSQL = `/* outbox: redrive dead letters */
WITH d AS MATERIALIZED (
  SELECT t.task_id FROM outbox.dead_task t WHERE $where FOR UPDATE SKIP LOCKED)
SELECT task_id, died_us, CASE WHEN NOT chosen THEN 'key_held' WHEN written THEN 'changed' ELSE 'dropped' END
  FROM outbox.redrive(ids => ARRAY(SELECT task_id FROM d), without_key => $1, actor => $2)
 ORDER BY died_us, task_id`

const purgeSQL = `/* outbox: purge dead letters */
WITH d AS MATERIALIZED (
  SELECT t.task_id, t.died_at FROM outbox.dead_task t WHERE $where FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.dead_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT d.task_id, (extract(epoch FROM d.died_at) * 1000000)::bigint, 'changed'
  FROM gone JOIN d USING (task_id) ORDER BY d.died_at, d.task_id`

// A row that a relay deletes at the end of its retention is skipped.
const purgeFinishedSQL = `/* outbox: purge finished tasks */
WITH d AS MATERIALIZED (
  SELECT t.task_id FROM outbox.done_task t WHERE $where FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM outbox.done_task WHERE task_id = ANY (ARRAY(SELECT task_id FROM d)) RETURNING task_id)
SELECT task_id, 0, 'changed' FROM gone ORDER BY task_id`

// The functions of the others have their owner's rights, too (schema/functions/actions.sql).
const cancelSQL = `/* outbox: cancel tasks */
WITH page AS MATERIALIZED (SELECT t.task_id FROM outbox.task t WHERE $where)
SELECT p.task_id, 0, outbox.cancel_task(p.task_id) FROM page AS p ORDER BY p.task_id`

const changeSQL = `/* outbox: change tasks */
WITH page AS MATERIALIZED (SELECT t.task_id FROM outbox.task t WHERE $where)
SELECT p.task_id, 0, COALESCE(c.outcome, 'not_found')
  FROM page AS p LEFT JOIN outbox.change_tasks(ARRAY(SELECT task_id FROM page),
    timestamptz 'epoch' + $1::bigint * interval '1 microsecond', $2::smallint, $3::text) AS c USING (task_id)
 ORDER BY p.task_id`

// startSQL is when a bulk action began, and the last task of its table then.
const startSQL = `/* outbox: the start of a bulk action */
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, COALESCE(max(task_id), 0) FROM $table`

// Redrive makes the dead letters that pass the filter tasks again, the oldest first.
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
// It leaves out dead letters that died after it began, and those that another transaction moves or
// deletes; it does not wait for them. It may leave out those whose death commits meanwhile. For all
// else see [Bulk].
func (c *Client) Redrive(ctx context.Context, f Filter, o Bulk) (BulkResult, error) {
	return c.bulk(ctx, &bulk{action: ActionRedrive, query: redriveSQL, only: StateDead,
		args: []any{o.WithoutKey, c.config.Actor}}, f, o)
}

// Purge deletes the dead letters that pass the filter, the oldest first. All else is as of
// [Client.Redrive], but it skips none. For dead letters that are to go by themselves see
// relay.Config.DeadRetention.
func (c *Client) Purge(ctx context.Context, f Filter, o Bulk) (BulkResult, error) {
	return c.bulk(ctx, &bulk{action: ActionPurge, query: purgeSQL, only: StateDead}, f, o)
}

// PurgeFinished deletes the finished tasks of the history that pass the filter, with their results. Those
// enqueued first go first. Counts of finished tasks stay. For records that are to go by themselves see
// handlers.Retention.
//
// It waits for no lock: it leaves out records that another transaction has locked. It leaves tasks that
// were enqueued after it began, and may leave those that finish meanwhile. A filter by a type reads the
// records of all types, too. The call needs the rights of a worker or of the owner; an operator has none
// to change the history. Filter.Reason and states other than StateFinished are refused with
// outbox.ErrInvalidOption. For all else see [Bulk].
func (c *Client) PurgeFinished(ctx context.Context, f Filter, o Bulk) (BulkResult, error) {
	return c.bulk(ctx, &bulk{action: ActionPurgeFinished, query: purgeFinishedSQL, only: StateFinished}, f, o)
}

// Cancel cancels the tasks that pass the filter, as [outbox.Cancel] does. Those that wait are
// deleted. Those that run are asked to end, and are in BulkResult.Running. See [Bulk].
func (c *Client) Cancel(ctx context.Context, f Filter, o Bulk) (BulkResult, error) {
	return c.bulk(ctx, &bulk{action: ActionCancel, query: cancelSQL}, f, o)
}

// RunNow makes the scheduled and retrying tasks that pass the filter due at once, as [outbox.RunNow]
// does. See [Bulk].
func (c *Client) RunNow(ctx context.Context, f Filter, o Bulk) (BulkResult, error) {
	return c.bulk(ctx, &bulk{action: ActionRunNow, query: changeSQL, args: []any{int64(0), nil, nil},
		also: "t.state || '' = 'scheduled'"}, f, o)
}

// Reschedule makes the waiting tasks that pass the filter due at a time, or at once if it has passed:
// ready, scheduled and retrying ones, and those that wait for their key. Their attempts stay. A time
// before the year 1 or after 9999 is refused with outbox.ErrInvalidOption, as is the zero time. See
// [Bulk].
func (c *Client) Reschedule(ctx context.Context, f Filter, at time.Time, o Bulk) (BulkResult, error) {
	if at.IsZero() {
		return BulkResult{}, invalid("Reschedule: the time is zero")
	}
	if err := checkOption(outbox.RunAt(at)); err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, &bulk{action: ActionReschedule, query: changeSQL, args: []any{at.UnixMicro(), nil, nil},
		to: " to " + at.UTC().Format(time.RFC3339)}, f, o)
}

// SetPriority gives the waiting tasks that pass the filter a priority, as outbox.Priority does. See
// [Bulk].
func (c *Client) SetPriority(ctx context.Context, f Filter, priority int, o Bulk) (BulkResult, error) {
	if err := checkOption(outbox.Priority(priority)); err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, &bulk{action: ActionSetPriority, query: changeSQL, args: []any{nil, priority, nil},
		to: " to priority " + strconv.Itoa(priority)}, f, o)
}

// Retype gives the waiting tasks that pass the filter another type, as after a rename in the code. They
// keep all else. A unique key is theirs in the new type; if another task holds it there, the task
// stays as it is, and is in BulkResult.Skipped. A task with an ordering or group key waits for its turn
// among those of its key in the new type; one of the old type that runs does not hold it up. Dead
// letters keep their type: redrive them before Retype.
//
// It waits, as an Enqueue does, for open transactions that have enqueued tasks of the new type with the
// same unique keys. Until it commits, no relay promotes tasks of ordering and group keys. An invalid
// type is refused with outbox.ErrInvalidType. See [Bulk].
func (c *Client) Retype(ctx context.Context, f Filter, taskType string, o Bulk) (BulkResult, error) {
	if _, err := (outbox.TaskSpec{Type: taskType}).Encode(); err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, &bulk{action: ActionRetype, query: changeSQL, args: []any{nil, nil, taskType},
		also: "t.task_type <> $3::text", to: " to type " + taskType}, f, o)
}

func checkOption(o outbox.Option) error {
	_, err := outbox.TaskSpec{Type: "any", Options: []outbox.Option{o}}.Encode()
	return err
}

var errEncoded = errors.New("encoded")

const setPayloadSQL = `/* outbox: set a payload */ SELECT outbox.set_payload($1, $2::jsonb)`

// SetPayload replaces the payload of a task that waits, or of a dead letter before it is redriven. The
// payload is encoded as Enqueue does. All else stays, also a unique key that was made of the payload.
// The audit log says that it was replaced, without the payload. A task that runs, or that another
// transaction has locked, stays as it is: the error is ErrRunning. One whose payload an outbox.Codec
// has encoded is refused with outbox.ErrInvalidPayload. Other errors: ErrNotFound,
// outbox.ErrInvalidPayload, outbox.ErrPayloadTooLarge, and those of a Client.
func (c *Client) SetPayload(ctx context.Context, taskID int64, payload any) error {
	text, err := outbox.TaskSpec{Type: "any", Payload: payload}.Encode()
	if err != nil {
		return err
	}
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		var outcome sql.NullString
		if err := q.QueryRowContext(ctx, c.schema.SQL(setPayloadSQL), taskID, string(text)).Scan(&outcome); err != nil {
			return nil, err
		}
		switch outcome.String {
		case "":
			return nil, ErrNotFound
		case "running":
			return nil, ErrRunning
		case "encoded":
			return nil, errEncoded
		}
		return entriesOf(ActionSetPayload, []int64{taskID}, ""), nil
	})
	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrRunning):
		return fmt.Errorf("%w: task %d", err, taskID)
	case errors.Is(err, errEncoded):
		return fmt.Errorf("%w: task %d: the payload is encoded by an outbox.Codec, and another one would be stored "+
			"in plain text: cancel or purge the task, and enqueue another one by the app", outbox.ErrInvalidPayload, taskID)
	}
	return failed("set a payload", err)
}

// Bulk says how an action takes the tasks that pass its filter. The zero value means all of them, at
// full speed.
//
// An action takes dead letters from the oldest death on, and other tasks by id, finished ones too. It works in
// transactions of 1,000 tasks, with an audit entry each; one of a search reads up to 10,000. On a
// Client that In returned all of it is in that transaction: bound it by Limit. It waits for no run and
// leaves tasks that were enqueued or died after it began. A task that passes the filter as its page
// is read is taken, also if it changes in that moment.
//
// With an error the result is that of the transactions before. The error is ctx's, the server's, or
// outbox.ErrCommitUnknown, after which one transaction more may have committed. The zero Filter is
// refused: see Filter.All. A call may be repeated.
type Bulk struct {
	// After is BulkResult.Next of a call that ended early; "" begins with the oldest.
	After string
	// Limit is the most tasks that one call takes, including skipped and running ones; 0 is no limit.
	Limit int
	// PerSecond is the most tasks changed a second; 0 is no limit.
	PerSecond int
	// Timeout bounds each transaction; 0 is no bound.
	Timeout time.Duration
	// WithoutKey makes Redrive run also dead letters whose unique key another task holds, as tasks
	// without a unique key. Other actions refuse it.
	WithoutKey bool
	// Progress is called after each transaction with the result so far. If it returns false, the
	// call ends without an error.
	Progress func(BulkResult) bool
}

func (o Bulk) check(action Action) error {
	switch {
	case o.Limit < 0:
		return invalid("Bulk.Limit: %d: must not be negative; 0 is no limit", o.Limit)
	case o.PerSecond < 0:
		return invalid("Bulk.PerSecond: %d: must not be negative; 0 is no limit", o.PerSecond)
	case o.Timeout < 0:
		return invalid("Bulk.Timeout: %v: must not be negative; 0 is no bound", o.Timeout)
	case o.WithoutKey && action != ActionRedrive:
		return invalid("Bulk.WithoutKey: %s takes tasks with their keys", action)
	}
	return nil
}

// BulkResult is what became of tasks, in the order in which they were taken. An id takes 8 bytes of
// memory.
type BulkResult struct {
	IDs     []int64 // changed
	Skipped []int64 // left by Redrive and Retype: another task holds their unique key
	Running []int64 // run or are locked: Cancel asked them to end, and others left them
	Next    string  // Bulk.After to go on; "": none is left
}

func (r BulkResult) size() int { return len(r.IDs) + len(r.Skipped) + len(r.Running) }

// bulk is an action on tasks, and its next page.
type bulk struct {
	action Action
	query  string
	args   []any  // of the query, before those of its conditions
	also   string // one more condition
	to     string // what the audit log says after the tasks
	only   State  // StateDead: on dead letters; StateFinished: on the history; "": on other tasks
	page   search
}

// prepare checks the filter and finds what to read.
func (b *bulk) prepare(f Filter, o Bulk) (err error) {
	if err := cmp.Or(f.check(), f.checkChosen(b.action), o.check(b.action)); err != nil {
		return err
	}
	if f.Reason != "" && b.only == StateFinished {
		return invalid("Filter.Reason: a finished task has none")
	}
	if f.Reason != "" && f.State == "" {
		f.State = StateDead
	}
	f.State = cmp.Or(f.State, b.only)
	if takes := b.action.States(); f.State != "" && !slices.Contains(takes, f.State) {
		return invalid("Filter.State: %s takes %q tasks, not %q", b.action, takes, f.State)
	}
	q := TaskQuery{Filter: f, Limit: maxRows, MaxScan: pageScan}
	if o.PerSecond > 0 {
		q.Limit = min(max(o.PerSecond/10, 1), maxRows)
	}
	if b.page, err = newSearch(q, maxRows); err != nil {
		return err
	}
	b.page.args, b.page.also, b.page.order, b.page.tables = b.args, b.also, oldestFirst, []table{liveTable}
	switch b.only {
	case StateDead:
		b.page.order, b.page.tables = oldestDeath, []table{deadTable}
	case StateFinished:
		b.page.tables = []table{doneTable}
	}
	if b.also == "" && !b.page.searches() {
		b.page.maxScan = 0
	}
	b.page.after, err = b.page.order.parse(o.After)
	return err
}

// bulk acts on all tasks that pass the filter, page by page.
func (c *Client) bulk(ctx context.Context, b *bulk, f Filter, o Bulk) (r BulkResult, err error) {
	if err := b.prepare(f, o); err != nil {
		return r, err
	}
	r.Next = o.After
	for start := time.Now(); ; {
		if o.Limit > 0 {
			b.page.limit = min(b.page.limit, o.Limit-r.size())
		}
		if err := c.takePage(ctx, b, o.Timeout, &r); err != nil {
			return r, failed(string(b.action), b.explain(err))
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

var errDropped = errors.New("the task was not written (is there a trigger on outbox.task that drops rows?): roll back")

// taken is a task of a page, and what became of it, as the SQL functions say it.
type taken struct {
	place   place
	outcome string
}

func scanTaken(row scanner, t *taken) error {
	err := row.Scan(&t.place.taskID, &t.place.at, &t.outcome)
	if err == nil && t.outcome == "dropped" {
		err = fmt.Errorf("task %d: %w", t.place.taskID, errDropped)
	}
	return err
}

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
	page := &b.page
	var found []taken
	var add BulkResult
	err = c.act(ctx, func(q outbox.Querier) ([]AuditEntry, error) {
		if err := c.start(ctx, q, b); err != nil {
			return nil, err
		}
		if err := page.findEnd(ctx, c, q); err != nil {
			return nil, err
		}
		query, args := page.statement(b.query, "", page.order.by()+" LIMIT %s", page.limit)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scanTaken)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			switch t.outcome {
			case "changed", "canceled":
				add.IDs = append(add.IDs, t.place.taskID)
			case "key_held":
				add.Skipped = append(add.Skipped, t.place.taskID)
			case "running", "requested":
				add.Running = append(add.Running, t.place.taskID)
			}
		}
		return b.entries(add), nil
	})
	if err != nil {
		return err
	}
	page.after, page.until = page.until, place{}
	if len(found) == page.limit {
		page.after = found[len(found)-1].place
	}
	r.IDs, r.Skipped = append(r.IDs, add.IDs...), append(r.Skipped, add.Skipped...)
	r.Running, r.Next = append(r.Running, add.Running...), page.order.format(page.after)
	return nil
}

// start notes where the action ends: a redriven task may die again meanwhile, and must not be redriven
// for ever, and an app may enqueue as fast as an operator cancels.
func (c *Client) start(ctx context.Context, q outbox.Querier, b *bulk) error {
	if b.page.before != 0 || b.page.lastID != nil {
		return nil
	}
	var now, last int64
	query := c.schema.SQL(strings.Replace(startSQL, "$table", b.page.tables[0].name, 1))
	if err := q.QueryRowContext(ctx, query).Scan(&now, &last); err != nil {
		return err
	}
	if b.only == StateDead {
		b.page.before = now + 1
	} else {
		b.page.lastID = &last
	}
	return nil
}

// explain adds to an error of a right what it is needed for.
func (b *bulk) explain(err error) error {
	err = b.page.explain(err)
	if err != nil && b.only == StateFinished && pgerr.Code(err) == "42501" {
		return fmt.Errorf("a purge of finished tasks needs the rights of a worker or of the outbox's owner: %w", err)
	}
	return err
}

// entries are those of a page in the audit log.
func (b *bulk) entries(r BulkResult) []AuditEntry {
	ids := r.IDs
	if b.action == ActionCancel {
		ids = slices.Concat(ids, r.Running)
	}
	if b.page.filter.IDs != nil {
		return entriesOf(b.action, ids, b.to)
	}
	f, noun := b.page.filter, "tasks: "
	switch b.only {
	case StateDead:
		noun, f.State = "dead letters: ", ""
	case StateFinished:
		noun, f.State = "finished tasks: ", ""
	}
	return []AuditEntry{{Action: b.action, Target: noun + f.String() + b.to, Count: int64(len(ids))}}
}
