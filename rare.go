package outbox

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
)

// rare is a column that most tasks leave as it is by default: a statement names it only for a task that does not, since
// each column and each parameter costs.
type rare struct {
	name  string
	value string // its SQL, of the parts as texts
	parts []part
}

// part is what a task brings for a column, NULL if it is not used.
type part struct {
	used func(*settings) bool
	text func(*settings) string
}

func (p part) of(s *settings) sql.NullString {
	if !p.used(s) {
		return sql.NullString{}
	}
	return sql.NullString{String: p.text(s), Valid: true}
}

var rareColumns = []rare{
	{"priority", "COALESCE(%s::smallint, 0)", []part{{
		func(s *settings) bool { return s.priority != 0 },
		func(s *settings) string { return strconv.Itoa(s.priority) },
	}}},
	{"max_attempts", "%s::smallint", []part{{
		func(s *settings) bool { return s.maxAttempts > 0 },
		func(s *settings) string { return strconv.Itoa(s.maxAttempts) },
	}}},
	{"headers", "%s::jsonb", []part{{
		func(s *settings) bool { return s.headerJSON != "" },
		func(s *settings) string { return s.headerJSON },
	}}},
	{"run_at", "COALESCE(%s::timestamptz, clock_timestamp() + %s::bigint * interval '1 microsecond', now())", []part{{
		func(s *settings) bool { return !s.runAt.IsZero() },
		func(s *settings) string { return timestamp(s.runAt) },
	}, {
		func(s *settings) bool { return s.after > 0 },
		func(s *settings) string { return strconv.FormatInt(s.after.Microseconds(), 10) },
	}}},
	{"timeout_ms", "%s::integer", []part{{
		func(s *settings) bool { return s.timeout > 0 },
		func(s *settings) string { return strconv.FormatInt(s.timeout.Milliseconds(), 10) },
	}}},
	{"ordering_key", "%s", []part{{
		func(s *settings) bool { return s.orderingKey != "" },
		func(s *settings) string { return s.orderingKey },
	}}},
	{"skip_failed", "COALESCE(%s::boolean, false)", []part{{
		func(s *settings) bool { return s.skipFailed },
		func(s *settings) string { return strconv.FormatBool(s.skipFailed) },
	}}},
}

func (c rare) usedBy(s *settings) bool {
	return slices.ContainsFunc(c.parts, func(p part) bool { return p.used(s) })
}

// rareOf is the rare columns that any of the tasks needs.
func rareOf(tasks []row) (needed []rare) {
	for _, c := range rareColumns {
		if slices.ContainsFunc(tasks, func(r row) bool { return r.settings != plain && c.usedBy(r.settings) }) {
			needed = append(needed, c)
		}
	}
	return needed
}

// rareSQL is what a statement has in addition: each text follows what it belongs to. The arrays are for a statement of
// many tasks, and the values are of their elements then.
type rareSQL struct {
	names, values, arrays string
}

// rareOne are the rare columns that the task needs, in a statement for it alone, and what it brings for them.
func rareOne(v *values, task row) rareSQL {
	if task.settings == plain {
		return rareSQL{}
	}
	var names, texts strings.Builder
	for _, c := range rareOf([]row{task}) {
		of := make([]any, len(c.parts))
		for i, p := range c.parts {
			value := "NULL"
			if p.used(task.settings) {
				value = v.add(p.text(task.settings))
			}
			of[i] = value + "::text"
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&texts, ", "+c.value, of...)
	}
	return rareSQL{names: names.String(), values: texts.String()}
}

// withRare adds the rare columns that any of the tasks needs, as arrays.
func withRare(args []any, tasks []row) ([]any, rareSQL) {
	var names, values, arrays strings.Builder
	for _, c := range rareOf(tasks) {
		of := make([]any, len(c.parts))
		for i, p := range c.parts {
			texts := make([]sql.NullString, len(tasks))
			for j, r := range tasks {
				texts[j] = p.of(r.settings)
			}
			args = append(args, pq.Array(texts))
			element := fmt.Sprintf("%s_%d", c.name, i)
			of[i] = element
			fmt.Fprintf(&arrays, ", unnest($%d::text[]) AS %s", len(args), element)
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&values, ", "+c.value, of...)
	}
	return args, rareSQL{names.String(), values.String(), arrays.String()}
}

// timestamp writes t as a timestamptz literal. Times before year 1 are past as well.
func timestamp(t time.Time) string {
	if t = t.UTC(); t.Year() < 1 {
		t = time.Time{}
	}
	return t.Format("2006-01-02T15:04:05.999999Z")
}
