package admin

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
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

// newestSQL lists the tasks of all states. One that came back after it was finished, as after a
// failover, is in two tables, and listed once.
const newestSQL = `/* outbox: list the newest tasks */
SELECT DISTINCT ON (task_id) * FROM (
  (SELECT ` + taskColumns + ` FROM outbox.task t WHERE t.task_id < $1::bigint ORDER BY t.task_id DESC LIMIT $2)
   UNION ALL
  (SELECT ` + deadColumns + ` FROM outbox.dead_task t WHERE t.task_id < $1::bigint ORDER BY t.task_id DESC LIMIT $2)
   UNION ALL
  (SELECT ` + doneColumns + ` FROM outbox.done_task t WHERE t.task_id < $1::bigint ORDER BY t.task_id DESC LIMIT $2)
  ) AS newest
 ORDER BY task_id DESC, state = 'finished', state = 'dead' LIMIT $2`

// dueSQL lists tasks by due time. Such an index has no ids, so a page is sorted. What it may have in
// it is bounded first, by a search in the index's order: statistics that are old would have
// PostgreSQL sort all that is behind the place.
func dueSQL(state State, condition string) string {
	return `/* outbox: list ` + string(state) + ` tasks */
WITH page AS MATERIALIZED (
  SELECT t.run_at FROM outbox.task t
   WHERE t.state = 'scheduled' AND ` + condition + ` AND t.task_type = $1
     AND (t.run_at, t.task_id)
         > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
   ORDER BY t.run_at OFFSET $4::bigint - 1 LIMIT 1)
SELECT ` + taskColumns + ` FROM outbox.task t
 WHERE t.state = 'scheduled' AND ` + condition + ` AND t.task_type = $1
   AND (t.run_at, t.task_id)
       > (COALESCE(timestamptz 'epoch' + $2::bigint * interval '1 microsecond', '-infinity'), $3::bigint)
   AND t.run_at <= COALESCE((SELECT run_at FROM page), 'infinity')
 ORDER BY t.run_at, t.task_id LIMIT $4::bigint`
}

// orders are how the tasks of a state are listed: of one type, and of all.
var orders = map[State]struct{ ofType, ofAll string }{
	"":             {"", newestSQL},
	StateReady:     {readySQL, ""},
	StateScheduled: {dueSQL(StateScheduled, "true"), ""}, // with those that are retrying
	StateRetrying:  {dueSQL(StateRetrying, "t.attempt > 0"), ""},
	StateLeased:    {leasedSQL, ""},
	StateWaiting:   {waitingSQL, ""},
	StateDead:      {deadOfTypeSQL, deadSQL},
	StateFinished:  {finishedOfTypeSQL, finishedSQL},
}

// states are the values of Filter.State.
var states = slices.Sorted(maps.Keys(orders))

// TaskQuery selects a page of tasks. The zero value is the first page of the newest tasks in any state.
type TaskQuery struct {
	Filter Filter // zero: all tasks
	After  string // TaskPage.Next of the page before; "": the first page
	Limit  int    // the most rows, at most 1,000; 0: 100
	// MaxScan bounds how many tasks a search by a field without an index reads, and Count counts. A page
	// may then have fewer rows than Limit, or none, and not be the last. 0 is no bound; the most is
	// 100,000.
	MaxScan int
}

func (q TaskQuery) check() error {
	if q.MaxScan < 0 || q.MaxScan > maxScan {
		return invalid("TaskQuery.MaxScan: %d: must be between 1 and %d, or 0 for no bound", q.MaxScan, maxScan)
	}
	return q.Filter.check()
}

// TaskPage is a page of tasks. Pages neither repeat nor skip a task that keeps its place.
type TaskPage struct {
	Tasks []Task
	Next  string // After of the next page; "": this is the last page
}

// Tasks returns a page of the tasks that pass the filter.
//
// Those of one type and state are listed in its order: ready ones as they are claimed, scheduled and
// retrying ones by RunAt, leased and waiting ones by id, dead ones with the latest death first,
// finished ones with the latest id first. Such a page costs the same wherever it is and however many
// there are, as do those of all types in the state dead or finished, and of all states. Scheduled and
// retrying tasks that are due at the very same microsecond, as tasks enqueued in one transaction with
// outbox.After may be, are sorted by id for each page that has some of them. Where many retrying tasks
// are due between scheduled ones, a page of these has fewer than Limit, or none, and a Next.
//
// Any other filter makes it search: among the dead with the latest death first, among the scheduled
// or retrying of a type by RunAt, and else from the latest id on. Where few tasks pass it, it reads all
// of these, unless MaxScan bounds that. The times of dead letters have an index.
func (c *Client) Tasks(ctx context.Context, q TaskQuery) (page TaskPage, err error) {
	if err := errors.Join(q.check(), checkLimit(&q.Limit, defaultLimit)); err != nil {
		return page, err
	}
	order := orders[q.Filter.State]
	query := order.ofAll
	if q.Filter.Type != "" {
		query = order.ofType
	}
	if query == "" || !q.Filter.only(Filter{Type: q.Filter.Type, State: q.Filter.State}) {
		return c.found(ctx, q)
	}
	args, err := parsePlace(listOf(q.Filter.State), q.After)
	if err != nil {
		return page, err
	}
	if q.Filter.Type != "" {
		args = append([]any{q.Filter.Type}, args...)
	}
	args = append(args, q.Limit+1) // one more, to know whether there is a next page
	for range scans {
		found, err := list(ctx, c, "list tasks", query, args, scanTask)
		if err != nil {
			return page, err
		}
		found, page.Next = cut(found, q.Limit, func(t Task) string { return t.placeIn(q.Filter.State) })
		page.Tasks = append(page.Tasks, slices.DeleteFunc(found, func(t Task) bool {
			return q.Filter.State == StateScheduled && t.State != q.Filter.State
		})...)
		if page.Next == "" || len(page.Tasks) >= q.Limit {
			break
		}
		next, err := parsePlace(listOf(q.Filter.State), page.Next)
		if err != nil {
			return page, err
		}
		copy(args[1:], next)
	}
	if len(page.Tasks) > q.Limit {
		page.Tasks = page.Tasks[:q.Limit]
		page.Next = page.Tasks[q.Limit-1].placeIn(q.Filter.State)
	}
	return page, nil
}

// listOf is the name of a state's list: scheduled and retrying tasks are in one order.
func listOf(s State) string {
	switch s {
	case "":
		return "newest"
	case StateRetrying:
		return string(StateScheduled)
	}
	return string(s)
}

const (
	defaultLimit = 100
	scans        = 20   // for a page of scheduled tasks, each of Limit rows
	maxRows      = 1000 // of a page, and that one statement moves or deletes
)

// checkLimit sets the limit of a query.
func checkLimit(limit *int, ifZero int) error {
	if *limit == 0 {
		*limit = ifZero
	}
	if *limit < 0 || *limit > maxRows {
		return invalid("Limit: %d: must be between 1 and %d, or 0 for %d", *limit, maxRows, ifZero)
	}
	return nil
}

// A place is the text of a list's name and of the numbers that the list is ordered by, like
// scheduled.1700000000000000.42. It says nothing that a row does not.
type bounds struct {
	min, max int64
	start    any // stands for the beginning
}

// maxMicroseconds is in the year 9999, behind which no task is.
const maxMicroseconds = 253402300799999999

var places = map[string][]bounds{
	string(StateReady):     {{math.MinInt16, math.MaxInt16, math.MinInt16}, {0, math.MaxInt16, -1}, {0, math.MaxInt64, 0}},
	string(StateScheduled): {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, 0}},
	string(StateLeased):    {{0, math.MaxInt64, 0}},
	string(StateWaiting):   {{0, math.MaxInt64, 0}},
	string(StateDead):      {{-maxMicroseconds, maxMicroseconds, nil}, {0, math.MaxInt64, int64(math.MaxInt64)}},
	string(StateFinished):  {{0, math.MaxInt64, int64(math.MaxInt64)}},
	"newest":               {{0, math.MaxInt64, int64(math.MaxInt64)}},
	"oldest":               {{0, math.MaxInt64, 0}}, // bulk actions on tasks
	"audit":                {{0, math.MaxInt64, int64(math.MaxInt64)}},
}

// placeIn is where the task is in the order of a state.
func (t Task) placeIn(list State) string {
	switch list {
	case StateReady:
		return formatPlace(string(StateReady), int64(t.Priority), int64(t.Attempt), t.ID)
	case StateScheduled, StateRetrying:
		return formatPlace(listOf(list), t.RunAt.UnixMicro(), t.ID)
	case StateDead:
		return formatPlace(string(StateDead), t.EndedAt.UnixMicro(), t.ID)
	}
	return formatPlace(listOf(list), t.ID)
}

func formatPlace(list string, numbers ...int64) string {
	for _, n := range numbers {
		list += "." + strconv.FormatInt(n, 10)
	}
	return list
}

// parsePlace returns the numbers of a place, or those of the beginning, as arguments of a
// statement.
func parsePlace(list, text string) ([]any, error) {
	all := places[list]
	args := make([]any, len(all))
	fields := strings.Split(text, ".")
	refused := invalid("After: %.60q: it is not the end of a page of this list (%s)", text, list)
	for i, b := range all {
		if text == "" {
			args[i] = b.start
			continue
		}
		if len(fields) != len(all)+1 || fields[0] != list {
			return nil, refused
		}
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil || n < b.min || n > b.max {
			return nil, refused
		}
		args[i] = n
	}
	return args, nil
}

// cut returns the rows of a page, of which one more was asked for, and where the next page begins.
func cut[T any](found []T, limit int, place func(T) string) ([]T, string) {
	if len(found) <= limit {
		return found, ""
	}
	return found[:limit], place(found[limit-1])
}
