package outbox

import (
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lib/pq"
)

// rare is a column that most tasks leave as it is by default: a statement names it only for a task that does not.
type rare struct {
	name, kind string
	of         func(row) (text sql.NullString, used bool)
}

var rareColumns = []rare{
	{"timeout_ms", "integer", func(r row) (sql.NullString, bool) {
		return sql.NullString{String: strconv.FormatInt(r.timeout.Milliseconds(), 10), Valid: r.timeout > 0}, r.timeout > 0
	}},
	{"ordering_key", "text", func(r row) (sql.NullString, bool) {
		return sql.NullString{String: r.orderingKey, Valid: r.orderingKey != ""}, r.orderingKey != ""
	}},
	{"skip_failed", "boolean", func(r row) (sql.NullString, bool) {
		return sql.NullString{String: strconv.FormatBool(r.skipFailed), Valid: true}, r.skipFailed
	}},
}

// rareOf is the rare columns that any of the tasks needs.
func rareOf(tasks []row) (needed []rare) {
	for _, c := range rareColumns {
		if slices.ContainsFunc(tasks, func(r row) bool { _, used := c.of(r); return used }) {
			needed = append(needed, c)
		}
	}
	return needed
}

// rareSQL is what a statement for many tasks has in addition: each text follows what it belongs to.
type rareSQL struct {
	names, values, arrays string
}

// withRare adds the rare columns that any of the tasks needs, as arrays, to a statement's arguments.
func withRare(args []any, tasks []row) ([]any, rareSQL) {
	var names, values, arrays strings.Builder
	for _, c := range rareOf(tasks) {
		of := make([]sql.NullString, len(tasks))
		for i, r := range tasks {
			of[i], _ = c.of(r)
		}
		args = append(args, pq.Array(of))
		fmt.Fprintf(&names, ", %s", c.name)
		fmt.Fprintf(&values, ", %s::%s", c.name, c.kind)
		fmt.Fprintf(&arrays, ", $%d::text[]", len(args))
	}
	return args, rareSQL{names.String(), values.String(), arrays.String()}
}
