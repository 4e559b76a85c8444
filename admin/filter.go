package admin

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

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
