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

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// DeadQuery selects a page of dead letters. The zero value is the first page of all.
type DeadQuery struct {
	Filter DeadFilter
	// After is TaskPage.Next or DeadCount.Next of the page before; "" is the first page.
	After string
	// Limit is the most rows, at most 1,000; 0 means 100, and 20 for DeadGroups. It does not bound a
	// count.
	Limit int
	// MaxScan bounds how many dead letters a search by a field of DeadFilter without an index
	// reads, and CountDeadLetters counts. A page may then have fewer rows than Limit, or none, and
	// not be the last. 0 is no bound, but 10,000 for DeadGroups; the most is 100,000.
	MaxScan int
}

const maxScan = 100_000

const listDeadSQL = `/* outbox: list dead letters */
SELECT ` + deadColumns + ` FROM outbox.dead_task t
 WHERE %s`

// DeadLetters returns a page of the dead letters that pass the filter, the latest first. Those that
// die meanwhile are before the first page.
//
// A field of the filter without an index, whose value few dead letters have, makes it read all that
// the rest of the filter lets through, unless MaxScan bounds that.
func (c *Client) DeadLetters(ctx context.Context, q DeadQuery) (page TaskPage, err error) {
	d, err := newDeadPage(q, defaultLimit, latestFirst)
	if err != nil {
		return page, err
	}
	if words := q.Filter.String(); words == "all" || words == "type "+q.Filter.Type {
		// The plan of that statement is good for any type.
		return c.Tasks(ctx, TaskQuery{Type: q.Filter.Type, State: StateDead, After: q.After, Limit: q.Limit})
	}
	// One more than the limit, to know whether there is a next page.
	found, err := deadRows(ctx, c, "list dead letters", &d, listDeadSQL, d.limited(), scanTask, d.Limit+1)
	page.Tasks, page.Next = cut(found, d.Limit, func(t Task) string { return t.placeIn(StateDead) })
	if page.Next == "" {
		page.Next = d.until.String()
	}
	return page, err
}

// DeadCount is a number of dead letters.
type DeadCount struct {
	Count int64
	Next  string // DeadQuery.After to count on; "": all are counted
}

const countDeadSQL = `/* outbox: count dead letters */
SELECT count(*) FROM outbox.dead_task WHERE %s`

// CountDeadLetters returns how many dead letters pass the filter. It reads all of them, which takes
// its time where they are millions. With a MaxScan it counts among so many at most, the latest
// first.
func (c *Client) CountDeadLetters(ctx context.Context, q DeadQuery) (n DeadCount, err error) {
	d, err := newDeadPage(q, defaultLimit, latestFirst)
	if err != nil {
		return n, err
	}
	d.MaxScan = q.MaxScan
	counts, err := deadRows(ctx, c, "count dead letters", &d, countDeadSQL, "", func(row scanner, n *int64) error {
		return row.Scan(n)
	})
	if err != nil {
		return n, err
	}
	return DeadCount{Count: counts[0], Next: d.until.String()}, nil
}

// ErrorGroup is the tasks of one type with one error.
type ErrorGroup struct {
	Type string
	// Error is the first line of the last error's first 300 characters, with # for UUIDs and for numbers of
	// five digits or more.
	Error  string
	Count  int64
	Latest time.Time // when the latest of them died; of retrying tasks when the latest attempt began
}

// groupedError is the Error of a group. Statuses such as 404 and 410 stay apart.
const groupedError = `regexp_replace(split_part(left(COALESCE(last_error, ''), 300), E'\n', 1),
         '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]{5,}', '#', 'g') AS error`

const deadGroupsSQL = `/* outbox: group dead letters by error */
SELECT task_type, error, count(*), max(died_at) FROM (
  SELECT task_type, died_at, ` + groupedError + `
    FROM outbox.dead_task WHERE %s) AS d
 GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT `

const retryGroupsSQL = `/* outbox: group retrying tasks by error */
SELECT task_type, error, count(*), max(at) FROM (
  SELECT task_type, COALESCE(attempted_at, created_at) AS at, ` + groupedError + `
    FROM outbox.task WHERE state = 'scheduled' AND attempt > 0 AND task_type = $1
   ORDER BY run_at LIMIT $2) AS r
 GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 2 LIMIT 20`

// RetryGroups groups the retrying tasks of a type by error, the most frequent first, 20 groups at most.
// It reads the 10,000 that are due first. Without a type the error is outbox.ErrInvalidOption.
func (c *Client) RetryGroups(ctx context.Context, taskType string) (groups []ErrorGroup, err error) {
	if taskType == "" {
		return nil, invalid("RetryGroups: the task type is empty")
	}
	if err := checkText("RetryGroups", taskType); err != nil {
		return nil, err
	}
	return list(ctx, c, "group retrying tasks by error", retryGroupsSQL, []any{taskType, pageScan}, scanGroup)
}

func scanGroup(row scanner, g *ErrorGroup) error {
	return row.Scan(&g.Type, &g.Error, &g.Count, &g.Latest)
}

// DeadGroups groups the dead letters that pass the filter by type and error, the most frequent
// first. It reads the latest MaxScan, or 10,000, and refuses After.
func (c *Client) DeadGroups(ctx context.Context, q DeadQuery) (groups []ErrorGroup, err error) {
	if q.After != "" {
		return nil, invalid("DeadQuery.After: %.60q: DeadGroups begins with the latest; see DeadFilter.DiedBefore", q.After)
	}
	d, err := newDeadPage(q, 20, latestFirst)
	if err != nil {
		return nil, err
	}
	most := cmp.Or(q.MaxScan, pageScan)
	if d.Filter.searches() {
		d.MaxScan = most
	}
	query := deadGroupsSQL + strconv.Itoa(d.Limit)
	return deadRows(ctx, c, "group dead letters by error", &d, query, d.limited(), scanGroup, most)
}

// order is the one in which pages of dead letters go on.
type order struct{ words, after, from, until string }

var (
	oldestFirst = order{"died_at, task_id", ">", ">=", "<="}
	latestFirst = order{"died_at DESC, task_id DESC", "<", "<=", ">="}
)

// deadPage is a page of dead letters before it is read.
type deadPage struct {
	DeadQuery
	order   order
	after   deadPlace
	until   deadPlace // zero: to the last one
	before  int64     // they died before this time, in µs since 1970; 0: at any time
	by      *string   // who acts, for statements that write it
	indexed bool      // without the conditions that no index answers
}

// newDeadPage checks a query. MaxScan is of use only where no index tells which pass.
func newDeadPage(q DeadQuery, ifZero int, o order) (d deadPage, err error) {
	if q.MaxScan < 0 || q.MaxScan > maxScan {
		return d, invalid("DeadQuery.MaxScan: %d: must be between 1 and %d, or 0 for no bound", q.MaxScan, maxScan)
	}
	if err := errors.Join(checkLimit(&q.Limit, ifZero), q.Filter.check()); err != nil {
		return d, err
	}
	d = deadPage{DeadQuery: q, order: o}
	if !q.Filter.searches() {
		d.MaxScan = 0
	}
	d.after, err = parseDeadPlace(q.After)
	return d, err
}

// bind are the conditions of the dead letters that pass the filter after one place and not after
// the other.
func (d deadPage) bind() *binder {
	b := &binder{indexed: d.indexed}
	d.Filter.bind(b)
	if d.before != 0 {
		b.and("died_at < "+moment, d.before)
	}
	none := deadPlace{}
	if d.after != none {
		b.and("(died_at, task_id) "+d.order.after+" ("+moment+", ?)", d.after.diedAt, d.after.taskID)
	}
	if d.until != none {
		b.and("(died_at, task_id) "+d.order.until+" ("+moment+", ?)", d.until.diedAt, d.until.taskID)
	}
	// PostgreSQL takes two comparisons of rows for independent, and so a page for a large part of all.
	if d.after != none && d.until != none {
		b.and("died_at "+d.order.from+" "+moment, d.after.diedAt)
		b.and("died_at "+d.order.until+" "+moment, d.until.diedAt)
	}
	return b
}

// statement is a query with the conditions and what follows them, which may have a place for n, and
// with who acts.
func (d deadPage) statement(query, tail string, n ...any) (string, []any) {
	b := d.bind()
	where := b.where()
	for _, v := range n {
		tail = fmt.Sprintf(tail, b.arg(v))
	}
	if d.by == nil {
		return fmt.Sprintf(query, where+tail), b.args
	}
	return fmt.Sprintf(query, where+tail, b.arg(*d.by)+"::text"), b.args
}

// limited is the end of a statement of a page with so many rows.
func (d deadPage) limited() string { return " ORDER BY " + d.order.words + " LIMIT %s" }

// deadRows reads the rows of a page, for a call that is named in errors.
func deadRows[T any](ctx context.Context, c *Client, call string, d *deadPage, query, tail string,
	scan func(scanner, *T) error, n ...any) (found []T, err error) {
	err = c.read(func(q outbox.Querier) error {
		if err := d.findEnd(ctx, c, q); err != nil {
			return err
		}
		query, args := d.statement(query, tail, n...)
		found, err = rows(ctx, q, c.schema.SQL(query), args, scan)
		return err
	})
	return found, failed(call, err)
}

// The last dead letter that a page looks at.
const deadEndSQL = `/* outbox: the end of a page of dead letters */
SELECT (extract(epoch FROM died_at) * 1000000)::bigint, task_id FROM outbox.dead_task
 WHERE %s LIMIT 1`

// findEnd sets until to the last dead letter that the page may look at, if that is bounded and
// there are so many.
func (d *deadPage) findEnd(ctx context.Context, c *Client, q outbox.Querier) error {
	if d.MaxScan == 0 {
		return nil
	}
	all := *d
	all.indexed, all.by = true, nil
	query, args := all.statement(deadEndSQL, " ORDER BY "+d.order.words+" OFFSET %s", d.MaxScan-1)
	var end deadPlace
	err := q.QueryRowContext(ctx, c.schema.SQL(query), args...).Scan(&end.diedAt, &end.taskID)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	d.until = end
	return err
}

// DeadFilter selects the dead letters that pass all set fields. For lists and counts the zero
// DeadFilter selects all; Redrive and Purge need All for that. To select by a field without an
// index is to read all dead letters that the other fields let through, unless DeadQuery.MaxScan
// bounds that.
type DeadFilter struct {
	// All selects all dead letters if no other field is set.
	All bool
	// IDs are tasks, 1,000 at most; nil is no condition, and an empty slice means none.
	IDs []int64
	// Type is the task type.
	Type string
	// Reason has no index.
	Reason outbox.Reason
	// Error is a text that the last error contains. It has no index.
	Error string
	// DiedAfter and DiedBefore bound the time of death; DiedAfter is within the bounds, DiedBefore
	// is not.
	DiedAfter, DiedBefore time.Time
	// OlderThan is the least time since their death, by PostgreSQL's now(): the start of the
	// transaction.
	OlderThan time.Duration
}

// searches reports whether the filter has fields without an index.
func (f DeadFilter) searches() bool {
	b := new(binder)
	f.bind(b)
	return b.searches
}

// checkChosen refuses the zero DeadFilter, unless All is set.
func (f DeadFilter) checkChosen(action Action) error {
	if !f.All && f.String() == "all" {
		return invalid("the zero DeadFilter would %s all dead letters: set DeadFilter.All if this is intended", action)
	}
	return nil
}

// String is the filter in words, as the audit log has it: "all", or like "type A, reason handler".
func (f DeadFilter) String() string {
	b := new(binder)
	if f.bind(b); len(b.words) == 0 {
		return "all"
	}
	return strings.Join(b.words, ", ")
}

func (f DeadFilter) check() error {
	known := []outbox.Reason{"", outbox.ReasonAttempts, outbox.ReasonHandler, outbox.ReasonLostConnections,
		outbox.ReasonCommitted}
	if !slices.Contains(known, f.Reason) {
		return invalid("DeadFilter.Reason: %q: must be one of %q", f.Reason, known[1:])
	}
	if len(f.IDs) > maxRows {
		return invalid("DeadFilter.IDs: %d ids, at most %d", len(f.IDs), maxRows)
	}
	for name, at := range map[string]time.Time{"DiedAfter": f.DiedAfter, "DiedBefore": f.DiedBefore} {
		if y := at.UTC().Year(); y < 1 || y > 9999 {
			return invalid("DeadFilter.%s: the year %d, must be between 1 and 9999", name, y)
		}
	}
	if f.OlderThan < 0 {
		return invalid("DeadFilter.OlderThan: %v: must not be negative", f.OlderThan)
	}
	return errors.Join(checkText("DeadFilter.Type", f.Type), checkText("DeadFilter.Error", f.Error))
}

// bind adds the conditions that are set. A new field is a condition here.
func (f DeadFilter) bind(b *binder) {
	utc := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if f.IDs != nil {
		b.given(fmt.Sprintf("tasks %v", f.IDs), "task_id = ANY (?::bigint[])", pq.Array(f.IDs))
	}
	if f.Type != "" {
		b.given("type "+f.Type, "task_type = ?", f.Type)
	}
	if f.Reason != "" {
		b.search("reason "+string(f.Reason), "reason = ?", string(f.Reason))
	}
	if f.Error != "" {
		text := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(f.Error)
		b.search(fmt.Sprintf("error containing %q", f.Error), "last_error LIKE '%' || ? || '%'", text)
	}
	if !f.DiedAfter.IsZero() {
		b.given("died since "+utc(f.DiedAfter), "died_at >= "+moment, f.DiedAfter.UnixMicro())
	}
	if !f.DiedBefore.IsZero() {
		b.given("died before "+utc(f.DiedBefore), "died_at < "+moment, f.DiedBefore.UnixMicro())
	}
	if f.OlderThan > 0 {
		// Not clock_timestamp(), which no index can be searched for.
		b.given(fmt.Sprintf("older than %v", f.OlderThan), "died_at < now() - ?::bigint * interval '1 microsecond'",
			f.OlderThan.Microseconds())
	}
}

// moment is a time that is bound as µs since 1970, which all drivers send alike.
const moment = "timestamptz 'epoch' + ?::bigint * interval '1 microsecond'"

// binder builds the conditions and arguments of one statement, and says them in words. It leaves out
// conditions that are not set, so that the planner finds the index.
type binder struct {
	words, conditions []string
	args              []any
	indexed           bool // leave conditions without an index out
	searches          bool // a condition has no index
}

// given adds a condition that an index answers, and its words.
func (b *binder) given(words, condition string, value any) {
	b.words = append(b.words, words)
	b.and(condition, value)
}

// search adds a condition for which rows are read, and its words.
func (b *binder) search(words, condition string, value any) {
	if b.searches = true; !b.indexed {
		b.given(words, condition, value)
	}
}

// arg binds a value and returns its placeholder.
func (b *binder) arg(v any) string {
	b.args = append(b.args, v)
	return "$" + strconv.Itoa(len(b.args))
}

// and adds a condition, which has a ? for each value.
func (b *binder) and(condition string, values ...any) {
	for _, v := range values {
		condition = strings.Replace(condition, "?", b.arg(v), 1)
	}
	b.conditions = append(b.conditions, condition)
}

func (b *binder) where() string {
	if len(b.conditions) == 0 {
		return "true"
	}
	return strings.Join(b.conditions, " AND ")
}
