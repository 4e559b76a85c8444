package admin

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// The statements go through one index each, from a place on: $1 is the type, if it is one type, and
// the last one the limit. Where the order is by id, the row comparison makes the planner read the
// index that has the type first, where equality would tempt it to the primary key.
const (
	readySQL = `/* outbox: list ready tasks */
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state = 'ready' AND t.task_type = $1
   AND (t.priority, t.attempt, t.task_id) > ($2::smallint, $3::smallint, $4::bigint)
 ORDER BY t.priority, t.attempt, t.task_id LIMIT $5`

	// The index has no ids, so a page is sorted. What it may have in it is bounded first, by a
	// search in the index's order: statistics that are old would have PostgreSQL sort all that is
	// behind the place.
	scheduledSQL = `/* outbox: list scheduled tasks */
WITH page AS MATERIALIZED (
  SELECT t.run_at FROM outbox.task t
   WHERE t.state = 'scheduled' AND t.task_type = $1
     AND (t.run_at, t.task_id)
         > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
   ORDER BY t.run_at OFFSET $4::bigint - 1 LIMIT 1)
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state = 'scheduled' AND t.task_type = $1
   AND (t.run_at, t.task_id)
       > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
   AND t.run_at <= COALESCE((SELECT run_at FROM page), 'infinity')
 ORDER BY t.run_at, t.task_id LIMIT $4::bigint`

	// There are no more than workers, of all types together: they are all read.
	leasedSQL = `/* outbox: list leased tasks */
WITH leased AS MATERIALIZED (SELECT ` + taskColumns + ` FROM outbox.task t WHERE t.state = 'leased')
SELECT * FROM leased WHERE task_type = $1 AND task_id > $2::bigint ORDER BY task_id LIMIT $3`

	// The condition is that of the index, which no other has.
	waitingSQL = `/* outbox: list waiting tasks */
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state || '' = 'waiting' AND (t.task_type, t.task_id) > ($1::text, $2::bigint) AND t.task_type <= $1::text
 ORDER BY t.task_type, t.task_id LIMIT $3`

	deadSQL = `/* outbox: list dead tasks */
SELECT ` + deadColumns + ` FROM outbox.dead_task t
 WHERE (t.died_at, t.task_id)
       < (COALESCE(timestamptz 'epoch' + $1::bigint * interval '1 microsecond', 'infinity'), $2::bigint)
 ORDER BY t.died_at DESC, t.task_id DESC LIMIT $3`

	// The row comparison begins with the type, so that only the type's own index has the order.
	// With an equality a generic plan reads the index of all types if the statistics lack this
	// type.
	deadOfTypeSQL = `/* outbox: list dead tasks of a type */
SELECT ` + deadColumns + ` FROM outbox.dead_task t
 WHERE (t.task_type, t.died_at, t.task_id)
       < ($1::text, COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', 'infinity'), $3::bigint)
   AND t.task_type >= $1::text
 ORDER BY t.task_type DESC, t.died_at DESC, t.task_id DESC LIMIT $4`

	finishedSQL = `/* outbox: list finished tasks */
SELECT ` + doneColumns + ` FROM outbox.done_task t WHERE t.task_id < $1::bigint ORDER BY t.task_id DESC LIMIT $2`

	finishedOfTypeSQL = `/* outbox: list finished tasks of a type */
SELECT ` + doneColumns + ` FROM outbox.done_task t
 WHERE (t.task_type, t.task_id) < ($1::text, $2::bigint) AND t.task_type >= $1::text
 ORDER BY t.task_type DESC, t.task_id DESC LIMIT $3`
)

// orders are how the tasks of a state are listed: of one type, and of all.
var orders = map[State]struct{ ofType, ofAll string }{
	StateReady:     {readySQL, ""},
	StateScheduled: {scheduledSQL, ""},
	StateLeased:    {leasedSQL, ""},
	StateWaiting:   {waitingSQL, ""},
	StateDead:      {deadOfTypeSQL, deadSQL},
	StateFinished:  {finishedOfTypeSQL, finishedSQL},
}

// TaskQuery selects a page of the tasks of a type in a state.
type TaskQuery struct {
	Type  string // "": all types; only for dead and finished tasks
	State State  // required
	After string // TaskPage.Next of the page before; "": the first page
	Limit int    // at most 1,000; 0: 100
}

// TaskPage is a page of tasks. Pages neither repeat nor skip a task that keeps its place.
type TaskPage struct {
	Tasks []Task
	Next  string // After of the next page; "": this is the last page
}

// Tasks returns a page of the tasks in a state: ready ones as they are claimed, scheduled ones by
// RunAt, leased and waiting ones by id, dead ones with the latest death first, finished ones with
// the latest id first.
//
// A page costs the same wherever it is and however many there are, but of scheduled tasks: those
// that are due at the very same microsecond, as tasks enqueued in one transaction with outbox.After
// may be, are sorted by id for each page that has some of them.
func (c *Client) Tasks(ctx context.Context, q TaskQuery) (page TaskPage, err error) {
	order, known := orders[q.State]
	if !known {
		return page, invalid("TaskQuery.State: %q: must be one of %q", q.State, slices.Sorted(maps.Keys(orders)))
	}
	if err := errors.Join(checkText("TaskQuery.Type", q.Type), checkLimit(&q.Limit, defaultLimit)); err != nil {
		return page, err
	}
	if q.Type == "" && order.ofAll == "" {
		return page, invalid("TaskQuery.Type: it is needed for %s tasks", q.State)
	}
	args, err := parsePlace(string(q.State), q.After)
	if err != nil {
		return page, err
	}
	query := order.ofAll
	if q.Type != "" {
		query, args = order.ofType, append([]any{q.Type}, args...)
	}
	args = append(args, q.Limit+1) // one more, to know whether there is a next page
	found, err := list(ctx, c, "list tasks", query, args, scanTask)
	page.Tasks, page.Next = cut(found, q.Limit, Task.place)
	return page, err
}
