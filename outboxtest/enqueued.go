package outboxtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/codec"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// RequireEnqueued fails the test unless a task of the type is in outbox.task that match accepts and
// that is as wanted. It returns all such tasks, in the order of their ids. A nil match accepts
// every payload. match must not use q. Tasks that wait, are scheduled or run count; finished and
// dead ones do not. Tasks that a transaction has not committed are seen through that transaction
// only.
//
// The returned tasks are as their rows: Attempt counts the attempts begun, and MaxAttempts is 0
// where the handler decides.
func RequireEnqueued[P any](t testing.TB, q outbox.Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	s := search(t, q, taskType, match, want)
	if len(s.matched) == 0 {
		t.Fatalf("outboxtest: no task %s is enqueued%s%s", taskType.Name(), s.asWanted, s.listing())
	}
	return s.matched
}

// RequireEnqueuedN fails the test unless exactly n tasks of the type are enqueued that match accepts
// and that are as wanted. All else is as of [RequireEnqueued].
func RequireEnqueuedN[P any](t testing.TB, q outbox.Querier, n int, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	s := search(t, q, taskType, match, want)
	if len(s.matched) != n {
		t.Fatalf("outboxtest: %d tasks %s are enqueued%s, want %d%s", len(s.matched), taskType.Name(), s.asWanted, n, s.listing())
	}
	return s.matched
}

// RequireNotEnqueued fails the test if a task of the type is enqueued that match accepts and that is
// as wanted. All else is as of [RequireEnqueued].
func RequireNotEnqueued[P any](t testing.TB, q outbox.Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) {
	t.Helper()
	RequireEnqueuedN(t, q, 0, taskType, match, want...)
}

// Enqueued returns the enqueued tasks of the type that match accepts and that are as wanted, or
// none. It fails the test only if they cannot be read. All else is as of [RequireEnqueued].
func Enqueued[P any](t testing.TB, q outbox.Querier, taskType outbox.TaskType[P], match func(P) bool, want ...Want) []*outbox.Task[P] {
	t.Helper()
	return search(t, q, taskType, match, want).matched
}

// searched is the result of a search.
type searched[P any] struct {
	matched  []*outbox.Task[P]
	asWanted string         // " as wanted" if not every task of the type would do
	rows     []*row         // all of the type
	others   map[string]int // tasks of other types, counted only where none of the type is there
	hint     string
}

// search fails the test if the arguments are bad or the tasks cannot be read.
func search[P any](t testing.TB, q outbox.Querier, taskType outbox.TaskType[P], match func(P) bool, want []Want) *searched[P] {
	t.Helper()
	w, err := newWanted(want)
	err = errors.Join(err, checkType(taskType), must(!isNil(q), "the Querier is nil"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &searched[P]{}
	if match != nil || len(want) > 0 {
		s.asWanted = " as wanted"
	}
	if _, isPool := q.(interface{ SetMaxOpenConns(int) }); isPool {
		s.hint = "\n  (what a transaction has not committed is only seen through that transaction)"
	}
	s.rows, err = read(t.Context(), q, w.schema, taskType.Name())
	if err == nil && len(s.rows) == 0 {
		s.others, err = otherTypes(t.Context(), q, w.schema, taskType.Name())
	}
	if err != nil {
		t.Fatalf("outboxtest: look for tasks %s: %v", taskType.Name(), err)
	}
	codecs := codec.Of(taskType.New(*new(P)).Options)
	for _, r := range s.rows {
		task := &outbox.Task[P]{}
		if headers, name := codec.Without(r.Headers); name != "" {
			plain, err := codecs.Decode(name, r.Payload)
			if err != nil {
				t.Fatalf("outboxtest: task %d, %s: %v%s", r.ID, r.Type, err, s.listing())
			}
			r.Payload, r.Headers = plain, headers
		}
		handler.Fill(task, &r.Task)
		d := json.NewDecoder(bytes.NewReader(r.Payload))
		d.UseNumber() // as for a handler
		if err := d.Decode(&task.Payload); err != nil {
			t.Fatalf("outboxtest: the payload of task %d, %s, does not decode into %T: %v%s", r.ID, r.Type, task.Payload, err, s.listing())
		}
		var why []string
		if match != nil && !match(task.Payload) {
			why = append(why, "match says no")
		}
		for _, c := range w.checks {
			if text := c(r); text != "" {
				why = append(why, text)
			}
		}
		if r.why = strings.Join(why, "; "); r.why == "" {
			s.matched = append(s.matched, task)
		}
	}
	return s
}

const enqueuedSQL = `/* outboxtest: tasks of a type */
SELECT outbox.claimed(t), state, COALESCE((SELECT database_id::text FROM outbox.identity), '')
  FROM outbox.task t WHERE task_type = $1 ORDER BY task_id`

func read(ctx context.Context, q outbox.Querier, schema pg.Schema, taskType string) (out []*row, err error) {
	rows, err := q.QueryContext(ctx, schema.SQL(enqueuedSQL), taskType)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r, columns := &row{}, store.Row{TaskType: taskType}
		var text, databaseID string
		if err := rows.Scan(&text, &r.state, &databaseID); err != nil {
			return nil, err
		}
		if _, err := columns.FromText(text); err != nil {
			return nil, err
		}
		identity := &store.Identity{}
		identity.Set(databaseID)
		columns.Fill(&r.Task, identity, columns.Attempt)
		out = append(out, r)
	}
	return out, rows.Err()
}

const otherTypesSQL = `/* outboxtest: tasks of other types */
SELECT task_type, count(*) FROM outbox.task WHERE task_type <> ALL ($1::text[]) GROUP BY task_type`

// otherTypes counts the tasks of all types but the given ones.
func otherTypes(ctx context.Context, q outbox.Querier, schema pg.Schema, types ...string) (map[string]int, error) {
	rows, err := q.QueryContext(ctx, schema.SQL(otherTypesSQL), pq.Array(append([]string{}, types...))) // a nil slice is NULL
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

// maxListed is how many tasks a failure lists.
const maxListed = 20

// listing says what is there.
func (s *searched[P]) listing() string {
	if len(s.rows) == 0 {
		text := "\n  there is none of this type, and no other task"
		if len(s.others) > 0 {
			text = "\n  there is none of this type; enqueued is: " + countsText(s.others)
		}
		return text + s.hint
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n  all of this type, %d:", len(s.rows))
	for i, r := range s.rows {
		if i == maxListed {
			fmt.Fprintf(&b, "\n    … and %d more", len(s.rows)-i)
			break
		}
		fmt.Fprintf(&b, "\n    #%d %s, run_at %s, priority %d, attempt %d: %s", r.ID, r.state, timeText(r.RunAt),
			r.Priority, r.Attempt, short(string(r.Payload)))
		if r.LastError != "" {
			fmt.Fprintf(&b, "\n      last error: %s", short(r.LastError))
		}
		if r.why != "" {
			fmt.Fprintf(&b, "\n      not as wanted: %s", r.why)
		}
	}
	return b.String()
}

// countsText has the types in the order of their names.
func countsText(n map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s × %d", name, n[name]))
	}
	return strings.Join(parts, ", ")
}

// short cuts a text to what a line can hold.
func short(s string) string {
	const most = 500
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return s
}
