package inspect

import (
	"context"
	"fmt"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// Filter says which tasks are listed. Type and State are needed, but that Dead and Finished take "" for all types.
type Filter struct {
	Type  string
	State State
}

// Page is a page of tasks in the order of their state: ready ones as they are claimed, scheduled ones by RunAt, leased and waiting ones by id,
// dead ones with the latest death first, finished ones with the latest id first.
type Page struct {
	Tasks []Task
	Next  string // "": this was the last page; else what the next call takes as after
}

// Limits of a page.
const (
	defaultPage = 100
	maxPage     = 1000
)

// The statements go through one index each, from a place on: $1 is the type, if it is one type, and the last one the limit. Where the order is by id, the row
// comparison makes the planner read the index that has the type first, where equality would tempt it to the primary key.
const (
	readySQL = `/* outbox: list ready tasks */
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state = 'ready' AND t.task_type = $1 AND (t.priority, t.attempt, t.task_id) > ($2::smallint, $3::smallint, $4::bigint)
 ORDER BY t.priority, t.attempt, t.task_id LIMIT $5`

	// The index has no ids, so a page is sorted. What it may have in it is bounded first, by a search in the index's order: statistics that are old would have
	// PostgreSQL sort all that is behind the place.
	scheduledSQL = `/* outbox: list scheduled tasks */
WITH page AS MATERIALIZED (
  SELECT t.run_at FROM outbox.task t
   WHERE t.state = 'scheduled' AND t.task_type = $1
     AND (t.run_at, t.task_id) > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
   ORDER BY t.run_at OFFSET $4::bigint - 1 LIMIT 1)
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state = 'scheduled' AND t.task_type = $1
   AND (t.run_at, t.task_id) > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
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
 WHERE (t.died_at, t.task_id) < (COALESCE(timestamptz 'epoch' + $1::bigint * interval '1 microsecond', 'infinity'), $2::bigint)
 ORDER BY t.died_at DESC, t.task_id DESC LIMIT $3`

	// The row comparison begins with the type, so that only the type's own index has the order. With
	// an equality a generic plan reads the index of all types if the statistics lack this type.
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

// List returns a page of up to limit tasks, from the one after the place that after names on; "" is the beginning. A limit of 0 means 100; the
// most is 1,000. Pages neither repeat nor skip a task that keeps its place. A place is of one state: with another, or what is none, the error is ErrInvalid.
//
// A page costs the same wherever it is and however many there are, but of scheduled tasks: those that are due at the very same microsecond, as tasks enqueued
// in one transaction with outbox.After may be, are sorted by id for each page that has some of them.
func List(ctx context.Context, q outbox.Querier, f Filter, after string, limit int, opts ...Option) (Page, error) {
	if limit == 0 {
		limit = defaultPage
	}
	query, args, err := listStatement(f, after, limit, opts)
	if err != nil {
		return Page{}, err
	}
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return Page{}, fmt.Errorf("inspect: list: %w", pgerr.WithoutDSN(err))
	}
	defer rows.Close()
	var page Page
	for rows.Next() {
		var t Task
		if err := t.scan(rows); err != nil {
			return Page{}, fmt.Errorf("inspect: list: %w", err)
		}
		page.Tasks = append(page.Tasks, t)
	}
	if err := rows.Err(); err != nil {
		return Page{}, fmt.Errorf("inspect: list: %w", pgerr.WithoutDSN(err))
	}
	if len(page.Tasks) > limit {
		page.Tasks = page.Tasks[:limit]
		page.Next = placeOf(page.Tasks[limit-1])
	}
	return page, nil
}

// listStatement asks for one task more than limit, to know whether there is a next page.
func listStatement(f Filter, after string, limit int, opts []Option) (query string, args []any, err error) {
	s, err := newSettings(opts)
	if err != nil {
		return "", nil, err
	}
	order, known := orders[f.State]
	if !known {
		return "", nil, fmt.Errorf("%w: Filter.State: %q: must be one of %q", ErrInvalid, f.State, []State{Ready, Scheduled, Leased, Waiting, Dead, Finished})
	}
	if err := checkType(f.Type); err != nil {
		return "", nil, err
	}
	if limit < 1 || limit > maxPage {
		return "", nil, fmt.Errorf("%w: limit %d: must be between 1 and %d, or 0 for %d", ErrInvalid, limit, maxPage, defaultPage)
	}
	from, err := parsePlace(f.State, after)
	if err != nil {
		return "", nil, err
	}
	if f.Type == "" {
		if order.ofAll == "" {
			return "", nil, fmt.Errorf("%w: Filter.Type: it is needed for %s tasks", ErrInvalid, f.State)
		}
		return s.sql(order.ofAll), append(from, limit+1), nil
	}
	return s.sql(order.ofType), append(append([]any{f.Type}, from...), limit+1), nil
}
