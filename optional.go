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

// optionalColumn is a column that most tasks leave at its default. A statement names it only for a
// task that does not, as each column and each argument costs.
type optionalColumn struct {
	name  string
	value string // its SQL, of the parts as texts
	parts []part
}

// part is an option's value for a column, NULL where the task does not have the option.
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

var optionalColumns = []optionalColumn{
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

func (c optionalColumn) usedBy(s *settings) bool {
	return slices.ContainsFunc(c.parts, func(p part) bool { return p.used(s) })
}

// optionalOf are the optional columns that any of the tasks needs.
func optionalOf(tasks []row) (needed []optionalColumn) {
	for _, c := range optionalColumns {
		if slices.ContainsFunc(tasks, func(r row) bool { return r.settings != plain && c.usedBy(r.settings) }) {
			needed = append(needed, c)
		}
	}
	return needed
}

// optionalSQL is what optional columns add to a statement. Each text follows what it belongs to.
type optionalSQL struct {
	names, values, arrays string // arrays are for many tasks; the values are of their elements then
}

// optionalOne adds the optional columns of one task.
func optionalOne(args []any, task row) ([]any, optionalSQL) {
	var names, values strings.Builder
	for _, c := range optionalOf([]row{task}) {
		of := make([]any, len(c.parts))
		for i, p := range c.parts {
			of[i] = "NULL::text"
			if p.used(task.settings) {
				args = append(args, p.text(task.settings))
				of[i] = fmt.Sprintf("$%d::text", len(args))
			}
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&values, ", "+c.value, of...)
	}
	return args, optionalSQL{names: names.String(), values: values.String()}
}

// optionalMany adds the optional columns that any of the tasks needs, as arrays.
func optionalMany(args []any, tasks []row) ([]any, optionalSQL) {
	var names, values, arrays strings.Builder
	for _, c := range optionalOf(tasks) {
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
	return args, optionalSQL{names.String(), values.String(), arrays.String()}
}

// timestamp writes t as a timestamptz literal. Times before year 1 are past as well.
func timestamp(t time.Time) string {
	if t = t.UTC(); t.Year() < 1 {
		t = time.Time{}
	}
	return t.Format("2006-01-02T15:04:05.999999Z")
}
