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

// table is a table of tasks as a search reads it.
type table struct {
	name, columns string
	age           string // when a task died, ended or was enqueued
	latest        string // of a group of errors
	// An index has the order of the search with the type before it, or the ages in it.
	byType, byAge bool
}

var (
	liveTable = table{name: "outbox.task", columns: taskColumns, age: "t.created_at",
		latest: "COALESCE(t.attempted_at, t.created_at)"}
	// With a type, of a state that has an index in the order of the search.
	typedTable = table{name: liveTable.name, columns: taskColumns, age: liveTable.age, latest: liveTable.latest,
		byType: true}
	deadTable = table{name: "outbox.dead_task", columns: deadColumns, age: "t.died_at", latest: "t.died_at",
		byType: true, byAge: true}
	buriedTable = table{name: deadTable.name, columns: deadColumns, age: deadTable.age, latest: deadTable.latest}
	doneTable   = table{name: "outbox.done_task", columns: doneColumns, age: "t.finished_at", latest: "t.finished_at"}
)

// order is the one in which a search goes on: by a time and the id, or by the id alone.
type order struct {
	list       string // of its places
	time       string // a column; "": none
	descending bool
}

var (
	latestDeath = order{"dead", "t.died_at", true}
	oldestDeath = order{"dead", "t.died_at", false}
	dueFirst    = order{"scheduled", "t.run_at", false}
	newestFirst = order{"newest", "", true}
	oldestFirst = order{"oldest", "", false}
)

// by is the end of a statement.
func (o order) by() string {
	words := "t.task_id"
	if o.descending {
		words += " DESC"
	}
	if o.time == "" {
		return " ORDER BY " + words
	}
	return " ORDER BY " + strings.Replace(words, "t.task_id", o.time, 1) + ", " + words
}

// place is where a task is in an order, its time in µs since 1970. Zero is no place.
type place struct{ at, taskID int64 }

func (o order) format(p place) string {
	switch {
	case p == place{}:
		return ""
	case o.time == "":
		return formatPlace(o.list, p.taskID)
	}
	return formatPlace(o.list, p.at, p.taskID)
}

func (o order) parse(text string) (p place, err error) {
	args, err := parsePlace(o.list, text)
	if err != nil || text == "" {
		return p, err
	}
	p.taskID = args[len(args)-1].(int64)
	if o.time != "" {
		p.at = args[0].(int64)
	}
	return p, nil
}

// bound adds the condition that a task is on one side of a place.
func (o order) bound(b *binder, sign string, p place) {
	if o.time == "" {
		b.and("t.task_id "+sign+" ?", p.taskID)
		return
	}
	b.and("("+o.time+", t.task_id) "+sign+" ("+moment+", ?)", p.at, p.taskID)
	// PostgreSQL takes two comparisons of rows for independent, and so a page for a large part of all.
	b.and(o.time+" "+sign[:1]+"= "+moment, p.at)
}

// search reads the tasks that pass a filter, page by page.
type search struct {
	filter       Filter
	limit        int
	maxScan      int // 0: no bound
	tables       []table
	order        order
	after, until place  // until zero: to the last one
	before       int64  // they died before this time, in µs since 1970; 0: at any time
	lastID       *int64 // their ids are not above it
	args         []any  // of the statement, before those of its conditions
	also         string // one more condition
	indexed      bool   // without the conditions that no index answers
}

// newSearch checks a query, and finds where and in which order to read.
func newSearch(q TaskQuery, ifZero int) (s search, err error) {
	if err := errors.Join(checkLimit(&q.Limit, ifZero), q.check()); err != nil {
		return s, err
	}
	if q.Filter.Reason != "" {
		q.Filter.State = StateDead
	}
	s = search{filter: q.Filter, limit: q.Limit, maxScan: q.MaxScan, tables: []table{liveTable}, order: newestFirst}
	switch q.Filter.State {
	case "":
		s.tables = []table{liveTable, buriedTable, doneTable}
	case StateDead:
		s.tables, s.order = []table{deadTable}, latestDeath
	case StateFinished:
		s.tables = []table{doneTable}
	case StateScheduled, StateRetrying:
		if q.Filter.Type != "" {
			s.tables, s.order = []table{typedTable}, dueFirst
		}
	case StateWaiting:
		if q.Filter.Type != "" {
			s.tables = []table{typedTable}
		}
	}
	s.after, err = s.order.parse(q.After)
	return s, err
}

// searches reports whether there are conditions that no index answers.
func (s search) searches() bool {
	b := new(binder)
	s.bind(b, s.tables[0])
	return b.searches
}

// bind adds the conditions of the tasks in a table that pass the filter after one place and not
// after the other.
func (s search) bind(b *binder, of table) {
	s.filter.bind(b, of)
	if of.name == liveTable.name {
		s.bindState(b, of)
	}
	if s.before != 0 {
		b.and("t.died_at < "+moment, s.before)
	}
	if !b.indexed && s.lastID != nil {
		b.and("t.task_id <= ?", *s.lastID)
	}
	if !b.indexed && s.also != "" {
		b.and(s.also)
	}
	onward, back := ">", "<="
	if s.order.descending {
		onward, back = "<", ">="
	}
	if none := (place{}); s.after != none {
		s.order.bound(b, onward, s.after)
	}
	if none := (place{}); s.until != none {
		s.order.bound(b, back, s.until)
	}
}

// bindState adds the condition of a state of waiting and running tasks. In an order by id it is one that
// only the index of waiting tasks by id fits: another would be read from its beginning for each page.
// Of leased tasks there are few, and retrying ones have an index of their own.
func (s search) bindState(b *binder, of table) {
	column, state := "t.state || ''", s.filter.State
	// A bulk action goes by id, for which an index of retrying tasks would be sorted again for each page.
	retries := state == StateRetrying && s.order != oldestFirst
	indexed := of.byType || state == StateLeased || retries
	if indexed && state != StateWaiting {
		column = "t.state"
	}
	switch state {
	case "":
		return
	case StateRetrying, StateScheduled:
		retried := "t.attempt = 0"
		if state == StateRetrying {
			retried = "t.attempt > 0"
		}
		if b.searches = b.searches || !retries; retries || !b.indexed {
			b.and(retried)
		}
		state = StateScheduled
	}
	if b.searches = b.searches || !indexed; indexed || !b.indexed {
		b.and(column + " = '" + string(state) + "'")
	}
}

// statement is a query of each table, with the conditions and what follows them, which may have a %s for
// n. In a frame $all stands for all of them.
func (s search) statement(query, frame, tail string, n ...any) (string, []any) {
	b := &binder{indexed: s.indexed, args: slices.Clone(s.args)}
	var parts []string
	for _, of := range s.tables {
		b.conditions = nil
		s.bind(b, of)
		where, end := b.where(), tail
		for _, v := range n {
			end = fmt.Sprintf(end, b.arg(v))
		}
		parts = append(parts, strings.NewReplacer("$columns", of.columns, "$latest", of.latest,
			"$table", of.name, "$where", where+end).Replace(query))
	}
	if len(parts) == 1 && frame == "" {
		return parts[0], b.args
	}
	return strings.Replace(frame, "$all", "("+strings.Join(parts, ") UNION ALL (")+")", 1), b.args
}

// rowsOf reads the rows of a page, for a call that is named in errors.
func rowsOf[T any](ctx context.Context, c *Client, call string, s *search, query, frame, tail string,
	scan func(scanner, *T) error, n ...any) (found []T, err error) {
	err = c.read(func(q outbox.Querier) error {
		if err := s.findEnd(ctx, c, q); err != nil {
			return err
		}
		query, args := s.statement(query, frame, tail, n...)
		found, err = rows(ctx, q, c.schema.SQL("/* outbox: "+call+" */\n"+query), args, scan)
		return err
	})
	return found, failed(call, s.explain(err))
}

// explain adds to an error of a right what it is needed for.
func (s search) explain(err error) error {
	if err != nil && s.filter.hidden() && pgerr.Code(err) == "42501" {
		return fmt.Errorf("a filter by a key or a payload needs the right to SELECT that column: %w", err)
	}
	return err
}

// findEnd sets until to the last task that the page may look at, if that is bounded and there are so
// many. Of several tables the page ends where the first of them ends.
func (s *search) findEnd(ctx context.Context, c *Client, q outbox.Querier) error {
	if s.maxScan == 0 {
		return nil
	}
	at := "0::bigint"
	if s.order.time != "" {
		at = "(extract(epoch FROM " + s.order.time + ") * 1000000)::bigint"
	}
	for _, of := range s.tables {
		one := *s
		one.tables, one.indexed, one.args = []table{of}, true, nil
		query, args := one.statement("/* outbox: the end of a page of tasks */\nSELECT "+at+", t.task_id"+
			" FROM $table t WHERE $where", "", s.order.by()+" OFFSET %s LIMIT 1", s.maxScan-1)
		var end place
		switch err := q.QueryRowContext(ctx, c.schema.SQL(query), args...).Scan(&end.at, &end.taskID); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case s.lastID != nil && end.taskID >= *s.lastID: // two bounds without statistics would seem to hold few tasks
		case s.until == place{} || end.taskID > s.until.taskID: // several tables are read by id, from the last on
			s.until = end
		}
	}
	return nil
}

const (
	listSQL = `SELECT $columns FROM $table t
 WHERE $where`
	// A task that came back after it was finished, as after a failover, is in two tables, and listed
	// once.
	listFrame = `SELECT DISTINCT ON (task_id) * FROM ($all) AS newest
 ORDER BY task_id DESC, state = 'finished', state = 'dead' LIMIT `
	countSQL   = `SELECT t.task_id FROM $table t WHERE $where`
	countFrame = `SELECT count(DISTINCT task_id) FROM ($all) AS found`
	countOfOne = `SELECT count(*) FROM ($all) AS found`
)

// found returns a page of a search.
func (c *Client) found(ctx context.Context, q TaskQuery) (page TaskPage, err error) {
	s, err := newSearch(q, defaultLimit)
	if err != nil {
		return page, err
	}
	if !s.searches() {
		s.maxScan = 0
	}
	frame := ""
	if len(s.tables) > 1 {
		frame = listFrame + strconv.Itoa(s.limit+1)
	}
	// One more than the limit, to know whether there is a next page.
	tasks, err := rowsOf(ctx, c, "list tasks", &s, listSQL, frame, s.order.by()+" LIMIT %s", scanTask, s.limit+1)
	page.Tasks, page.Next = cut(tasks, s.limit, func(t Task) string {
		at := t.RunAt
		if s.order == latestDeath {
			at = t.EndedAt
		}
		return s.order.format(place{at.UnixMicro(), t.ID})
	})
	if page.Next == "" {
		page.Next = s.order.format(s.until)
	}
	return page, err
}

// TaskCount is a number of tasks.
type TaskCount struct {
	Count int64
	Next  string // TaskQuery.After to count on; "": all are counted
}

// Count returns how many tasks pass the filter. It reads all of them, which takes its time where they
// are millions; [Client.Types] has the counts of types and states. With a MaxScan it counts among so
// many at most, in the order of the list. Limit does not bound it.
func (c *Client) Count(ctx context.Context, q TaskQuery) (n TaskCount, err error) {
	s, err := newSearch(q, defaultLimit)
	if err != nil {
		return n, err
	}
	frame := countFrame
	if len(s.tables) == 1 {
		frame = countOfOne
	}
	counts, err := rowsOf(ctx, c, "count tasks", &s, countSQL, frame, "", func(row scanner, n *int64) error {
		return row.Scan(n)
	})
	if err != nil {
		return n, err
	}
	return TaskCount{Count: counts[0], Next: s.order.format(s.until)}, nil
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
const groupedError = `regexp_replace(split_part(left(COALESCE(t.last_error, ''), 300), E'\n', 1),
         '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]{5,}', '#', 'g') AS error`

const groupsSQL = `SELECT t.task_type, $latest AS at, ` + groupedError + ` FROM $table t WHERE $where`

const groupsFrame = `SELECT task_type, error, count(*), max(at) FROM ($all) AS d
 GROUP BY 1, 2 ORDER BY 3 DESC, 4 DESC, 1, 2 LIMIT `

// ErrorGroups groups the dead or retrying tasks that pass the filter by type and error, the most
// frequent first, 20 groups unless there is a Limit. It reads the first MaxScan of their list, or
// 10,000, and refuses After. The filter needs one of these states.
func (c *Client) ErrorGroups(ctx context.Context, q TaskQuery) (groups []ErrorGroup, err error) {
	if q.After != "" {
		return nil, invalid("TaskQuery.After: %.60q: ErrorGroups begins with the latest; see Filter.Before", q.After)
	}
	if s := q.Filter.State; s != StateDead && s != StateRetrying {
		return nil, invalid("Filter.State: %q: ErrorGroups groups %q or %q tasks", s, StateDead, StateRetrying)
	}
	s, err := newSearch(q, 20)
	if err != nil {
		return nil, err
	}
	most := cmp.Or(q.MaxScan, pageScan)
	if s.searches() {
		s.maxScan = most
	}
	return rowsOf(ctx, c, "group tasks by error", &s, groupsSQL, groupsFrame+strconv.Itoa(s.limit),
		s.order.by()+" LIMIT %s", func(row scanner, g *ErrorGroup) error {
			return row.Scan(&g.Type, &g.Error, &g.Count, &g.Latest)
		}, most)
}

const (
	pageScan = 10_000  // the most tasks that one transaction of a search reads
	maxScan  = 100_000 // of one query
)
