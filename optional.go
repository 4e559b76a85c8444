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
	name   string
	value  string                            // its SQL, of the values as texts
	values func(*settings) [2]sql.NullString // as many as value has %s; NULL for an option that the task does not have
}

var optionalColumns = []optionalColumn{
	{"priority", "COALESCE(%s::smallint, 0)", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{number(int64(s.priority))}
	}},
	{"max_attempts", "%s::smallint", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{number(int64(s.maxAttempts))}
	}},
	{"headers", "%s::jsonb", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{text(s.headerJSON)}
	}},
	{"run_at", "COALESCE(%s::timestamptz, clock_timestamp() + %s::bigint * interval '1 microsecond', now())", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{timestamp(s.runAt), number(max(s.after.Microseconds(), 0))}
	}},
	{"timeout_ms", "%s::integer", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{number(s.timeout.Milliseconds())}
	}},
	{"ordering_key", "%s", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{text(s.orderingKey)}
	}},
	{"skip_failed", "COALESCE(%s::boolean, false)", func(s *settings) [2]sql.NullString {
		return [2]sql.NullString{{String: "true", Valid: s.skipFailed}}
	}},
}

func text(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

func number(n int64) sql.NullString {
	return sql.NullString{String: strconv.FormatInt(n, 10), Valid: n != 0}
}

// timestamp writes t as a timestamptz literal. Times before year 1 are past as well.
func timestamp(t time.Time) sql.NullString {
	if t.IsZero() {
		return sql.NullString{}
	}
	if t = t.UTC(); t.Year() < 1 {
		t = time.Time{}
	}
	return text(t.Format("2006-01-02T15:04:05.999999Z"))
}

func (c optionalColumn) usedBy(r row) bool {
	v := c.values(r.settings)
	return v[0].Valid || v[1].Valid
}

// optionalOf are the optional columns that any of the tasks needs.
func optionalOf(tasks []row) (needed []optionalColumn) {
	for _, c := range optionalColumns {
		if slices.ContainsFunc(tasks, c.usedBy) {
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
	var names, expressions strings.Builder
	for _, c := range optionalOf([]row{task}) {
		values, of := c.values(task.settings), make([]any, strings.Count(c.value, "%s"))
		for i := range of {
			if of[i] = "NULL::text"; values[i].Valid {
				args = append(args, values[i].String)
				of[i] = fmt.Sprintf("$%d::text", len(args))
			}
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&expressions, ", "+c.value, of...)
	}
	return args, optionalSQL{names: names.String(), values: expressions.String()}
}

// optionalMany adds the optional columns that any of the tasks needs, as arrays.
func optionalMany(args []any, tasks []row) ([]any, optionalSQL) {
	var names, values, arrays strings.Builder
	for _, c := range optionalOf(tasks) {
		of := make([]any, strings.Count(c.value, "%s"))
		for i := range of {
			texts := make([]string, len(tasks)) // "" for NULL, as array_nulls may be off: no value is empty
			for j, r := range tasks {
				if v := c.values(r.settings)[i]; v.Valid {
					texts[j] = v.String
				}
			}
			args = append(args, pq.Array(texts))
			column := fmt.Sprintf("%s_%d", c.name, i)
			of[i] = "NULLIF(" + column + ", '')"
			fmt.Fprintf(&arrays, ", unnest($%d::text[]) AS %s", len(args), column)
		}
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&values, ", "+c.value, of...)
	}
	return args, optionalSQL{names.String(), values.String(), arrays.String()}
}
