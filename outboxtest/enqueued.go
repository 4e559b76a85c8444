package outboxtest

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
)

// RequireEnqueued fails the test unless a task of the type is in outbox.task that match accepts and that is as wanted.
// It returns all such tasks, in the order of their ids. A nil match accepts every payload; it must not use q.
// Tasks that wait, are scheduled or run count; finished and dead ones do not.
//
// The returned tasks are as their rows: Attempt counts the attempts begun, and MaxAttempts is 0 where the handler
// decides.
func RequireEnqueued[P any](t testing.TB, q Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	s := search(t.Context(), q, taskType, match, want)
	if s.err == nil && len(s.matched) == 0 {
		s.err = fmt.Errorf("outboxtest: no task %s is enqueued%s%s", s.name, s.likeThat(), s.listing())
	}
	return s.tasks(t)
}

// RequireEnqueuedN is RequireEnqueued for exactly n tasks.
func RequireEnqueuedN[P any](t testing.TB, q Querier, n int, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	s := search(t.Context(), q, taskType, match, want)
	if s.err == nil && len(s.matched) != n {
		s.err = fmt.Errorf("outboxtest: %d tasks %s are enqueued%s, want %d%s", len(s.matched), s.name, s.likeThat(), n, s.listing())
	}
	return s.tasks(t)
}

// RequireNotEnqueued fails the test if there is such a task as RequireEnqueued looks for.
func RequireNotEnqueued[P any](t testing.TB, q Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) {
	t.Helper()
	s := search(t.Context(), q, taskType, match, want)
	if s.err == nil && len(s.matched) > 0 {
		s.err = fmt.Errorf("outboxtest: %d tasks %s are enqueued%s, want none%s", len(s.matched), s.name, s.likeThat(), s.listing())
	}
	s.tasks(t)
}

// Enqueued returns such tasks as RequireEnqueued looks for, or none. It fails the test only if they cannot be read.
func Enqueued[P any](t testing.TB, q Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	return search(t.Context(), q, taskType, match, want).tasks(t)
}

// Count is the number of tasks that Enqueued returns.
func Count[P any](t testing.TB, q Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) int {
	t.Helper()
	return len(search(t.Context(), q, taskType, match, want).tasks(t))
}

// found is a row of outbox.task.
type found struct {
	id                             int64
	state, payload                 string
	runAt, createdAt               time.Time
	priority, attempt, maxAttempts int
	headers                        map[string]string
	lastError, orderingKey         string
	iterations                     int
	why                            string // it does not match; "" if it does
}

// searched is the result of a search, and its error or the test's failure.
type searched[P any] struct {
	name    string
	all     []*found
	matched []*outbox.Task[P]
	others  map[string]int // tasks of other types, counted only where none of the type is there
	narrow  bool           // not every task of the type would do
	pool    bool
	err     error
}

const enqueuedSQL = `/* outboxtest: tasks of a type */
SELECT task_id, state, payload::text, run_at, created_at, priority, attempt, COALESCE(max_attempts, 0), headers::text, COALESCE(last_error, ''),
       COALESCE(ordering_key, ''), iterations
  FROM outbox.task WHERE task_type = $1 ORDER BY task_id`

const otherTypesSQL = `/* outboxtest: tasks by type */
SELECT task_type, count(*) FROM outbox.task GROUP BY task_type`

func search[P any](ctx context.Context, q Querier, taskType outbox.TaskType[P], match func(P) bool, want []Want) *searched[P] {
	s := &searched[P]{name: taskType.Name(), narrow: match != nil || len(want) > 0}
	w := &wanted{schema: outbox.DefaultSchema}
	for _, o := range want {
		if o == nil {
			w.errs = append(w.errs, errors.New("outboxtest: a Want is nil"))
			continue
		}
		o.want(w)
	}
	if s.name == "" {
		w.errs = append(w.errs, errors.New("outboxtest: it is the zero TaskType: make it with outbox.NewTaskType"))
	}
	if v := reflect.ValueOf(q); q == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		w.errs = append(w.errs, errors.New("outboxtest: the Querier is nil"))
	}
	if s.err = errors.Join(w.errs...); s.err != nil {
		return s
	}
	_, s.pool = q.(interface{ SetMaxOpenConns(int) })
	s.all, s.err = read(ctx, q, inSchema(enqueuedSQL, w.schema), s.name)
	if s.err == nil && len(s.all) == 0 {
		s.others, s.err = counts(ctx, q, inSchema(otherTypesSQL, w.schema))
	}
	if s.err != nil {
		s.err = fmt.Errorf("outboxtest: look for tasks %s: %w", s.name, s.err)
		return s
	}
	for _, f := range s.all {
		task := &outbox.Task[P]{ID: f.id, Type: s.name, Headers: f.headers, Attempt: f.attempt, MaxAttempts: f.maxAttempts,
			Priority: f.priority, RunAt: f.runAt, CreatedAt: f.createdAt, LastError: f.lastError,
			OrderingKey: f.orderingKey, Iterations: f.iterations}
		d := json.NewDecoder(bytes.NewReader([]byte(f.payload)))
		d.UseNumber() // as for a handler
		if err := d.Decode(&task.Payload); err != nil {
			s.err = fmt.Errorf("outboxtest: the payload of task %d, %s, does not decode into %T: %w%s", f.id, s.name, task.Payload, err, s.listing())
			return s
		}
		var why []string
		if match != nil && !match(task.Payload) {
			why = append(why, "match says no")
		}
		for _, c := range w.checks {
			if text := c(f); text != "" {
				why = append(why, text)
			}
		}
		if f.why = strings.Join(why, "; "); f.why == "" {
			s.matched = append(s.matched, task)
		}
	}
	return s
}

func read(ctx context.Context, q Querier, query string, args ...any) (out []*found, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		f := &found{}
		var headers sql.NullString
		err := rows.Scan(&f.id, &f.state, &f.payload, &f.runAt, &f.createdAt, &f.priority, &f.attempt, &f.maxAttempts, &headers, &f.lastError,
			&f.orderingKey, &f.iterations)
		if err != nil {
			return nil, err
		}
		f.headers = headersOf(headers)
		out = append(out, f)
	}
	return out, rows.Err()
}

func counts(ctx context.Context, q Querier, query string, args ...any) (map[string]int, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			return nil, err
		}
		out[name] = n
	}
	return out, rows.Err()
}

// tasks ends the test if there is an error.
func (s *searched[P]) tasks(t testing.TB) []*outbox.Task[P] {
	t.Helper()
	if s.err != nil {
		t.Fatalf("%v", s.err)
	}
	return s.matched
}

func (s *searched[P]) likeThat() string {
	if s.narrow {
		return " as wanted"
	}
	return ""
}

// maxListed is how many tasks a failure lists.
const maxListed = 20

// listing says what is there.
func (s *searched[P]) listing() string {
	var b strings.Builder
	if len(s.all) == 0 {
		fmt.Fprintf(&b, "\n  there is none of this type")
		if len(s.others) > 0 {
			fmt.Fprintf(&b, "; enqueued is: %s", countsText(s.others))
		} else {
			fmt.Fprintf(&b, ", and no other task")
		}
		if s.pool {
			fmt.Fprintf(&b, "\n  (what a transaction has not committed is only seen through that transaction)")
		}
		return b.String()
	}
	fmt.Fprintf(&b, "\n  all of this type, %d:", len(s.all))
	for i, f := range s.all {
		if i == maxListed {
			fmt.Fprintf(&b, "\n    … and %d more", len(s.all)-i)
			break
		}
		fmt.Fprintf(&b, "\n    #%d %s, run_at %s, priority %d, attempt %d: %s", f.id, f.state, timeText(f.runAt), f.priority, f.attempt, short(f.payload))
		if f.lastError != "" {
			fmt.Fprintf(&b, "\n      last error: %s", short(f.lastError))
		}
		if f.why != "" {
			fmt.Fprintf(&b, "\n      not as wanted: %s", f.why)
		}
	}
	return b.String()
}

func countsText(n map[string]int) string {
	names := make([]string, 0, len(n))
	for name := range n {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s × %d", name, n[name])
	}
	return strings.Join(names, ", ")
}

// short cuts a text to what a line can hold.
func short(s string) string {
	const most = 500
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
