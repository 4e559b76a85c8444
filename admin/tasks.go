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
	Ready:     {readySQL, ""},
	Scheduled: {scheduledSQL, ""},
	Leased:    {leasedSQL, ""},
	Waiting:   {waitingSQL, ""},
	Dead:      {deadOfTypeSQL, deadSQL},
	Finished:  {finishedOfTypeSQL, finishedSQL},
}

// Tasks returns a page of the tasks in a state: ready ones as they are claimed, scheduled ones by
// RunAt, leased and waiting ones by id, dead ones with the latest death first, finished ones with
// the latest id first. Of dead and finished ones taskType may be "": all types.
//
// A page costs the same wherever it is and however many there are, but of scheduled tasks: those
// that are due at the very same microsecond, as tasks enqueued in one transaction with outbox.After
// may be, are sorted by id for each page that has some of them.
func (c *Client) Tasks(
	ctx context.Context, taskType string, state State, p Page,
) (tasks []Task, next string, err error) {
	order, known := orders[state]
	if !known {
		return nil, "", invalid("state %q: must be one of %q", state, slices.Sorted(maps.Keys(orders)))
	}
	if err := errors.Join(checkText("task type", taskType), p.check(defaultLimit)); err != nil {
		return nil, "", err
	}
	if taskType == "" && order.ofAll == "" {
		return nil, "", invalid("task type: it is needed for %s tasks", state)
	}
	args, err := parsePlace(string(state), p.After)
	if err != nil {
		return nil, "", err
	}
	query := order.ofAll
	if taskType != "" {
		query, args = order.ofType, append([]any{taskType}, args...)
	}
	args = append(args, p.Limit+1) // one more, to know whether there is a next page
	if tasks, err = list(ctx, c, "list tasks", query, args, scanTask); err != nil {
		return nil, "", err
	}
	tasks, next = cut(tasks, p.Limit, Task.place)
	return tasks, next, nil
}
