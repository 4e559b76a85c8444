package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
)

// Filter selects the tasks that pass all set fields, in each list, count and action alike. For lists
// and counts the zero Filter selects all; actions need All for that.
//
// Keys and payloads may be secret: a field of these needs the right to SELECT its column, which the
// roles of https://github.com/txoutbox/outbox/blob/main/docs/security.md give to operators for dead
// letters, and to workers. The audit log says that there was such a field, without its value.
type Filter struct {
	// All selects all tasks if no other field is set.
	All bool
	// IDs are tasks, 1,000 at most; nil is no condition, and an empty slice means none.
	IDs []int64
	// Type is the task type.
	Type string
	// State is where the tasks are; "" is any. If it is "", Redrive and Purge take dead letters,
	// PurgeFinished finished tasks, and the other actions tasks that wait or run.
	State State
	// Reason is that of a dead letter. Other tasks have none.
	Reason outbox.Reason
	// Error is a text that the last error contains.
	Error string
	// UniqueKey, OrderingKey and GroupKey are the keys of outbox.Unique, OrderedBy and GroupBy. A task
	// has the unique key that it was enqueued with, also if another holds it by now.
	UniqueKey, OrderingKey, GroupKey string
	// Payload is JSON that the payload contains, as PostgreSQL's @> has it: {"user_id": 7} passes any
	// object with that member. nil is no condition; {} and [] are refused, as all contain them.
	Payload json.RawMessage
	// Since and Before bound a time: Since <= time < Before. It is when a dead letter died, a finished task
	// ended, or any other task was enqueued.
	Since, Before time.Time
	// OlderThan is the least age since then, by PostgreSQL's now(): the start of the transaction.
	OlderThan time.Duration
}

// checkChosen refuses the zero Filter, unless All is set.
func (f Filter) checkChosen(action Action) error {
	if !f.All && f.String() == "all" {
		return invalid("the zero Filter would %s all tasks: set Filter.All if this is intended", action)
	}
	return nil
}

// String is the filter in words, as the audit log has it: "all", or like "type A, reason handler".
func (f Filter) String() string {
	b := new(binder)
	if f.bind(b, deadTable); len(b.words) == 0 {
		return "all"
	}
	return strings.Join(b.words, ", ")
}

// only reports whether f sets the same fields as other.
func (f Filter) only(other Filter) bool {
	f.All = false
	return f.String() == other.String()
}

func (f Filter) check() error {
	known := []outbox.Reason{"", outbox.ReasonAttempts, outbox.ReasonHandler, outbox.ReasonLostConnections,
		outbox.ReasonCommitted, outbox.ReasonExpired}
	if !slices.Contains(known, f.Reason) {
		return invalid("Filter.Reason: %q: must be one of %q", f.Reason, known[1:])
	}
	if f.Reason != "" && f.State != "" && f.State != StateDead {
		return invalid("Filter.Reason: a %s task has none", f.State)
	}
	if !slices.Contains(states, f.State) {
		return invalid("Filter.State: %q: must be one of %q", f.State, states[1:])
	}
	if len(f.IDs) > maxRows {
		return invalid("Filter.IDs: %d ids, at most %d", len(f.IDs), maxRows)
	}
	if f.Payload != nil {
		text, err := (outbox.TaskSpec{Type: "any", Payload: f.Payload}).Encode()
		if err != nil {
			return invalid("Filter.Payload: %v", err)
		}
		var compact bytes.Buffer
		_ = json.Compact(&compact, text) // it is valid
		if c := compact.String(); c == "{}" || c == "[]" {
			return invalid("Filter.Payload: %s is contained in any: leave it out, or set Filter.All", c)
		}
	}
	for name, at := range map[string]time.Time{"Since": f.Since, "Before": f.Before} {
		if y := at.UTC().Year(); y < 1 || y > 9999 {
			return invalid("Filter.%s: the year %d, must be between 1 and 9999", name, y)
		}
	}
	if f.OlderThan < 0 {
		return invalid("Filter.OlderThan: %v: must not be negative", f.OlderThan)
	}
	keys := map[string]string{"UniqueKey": f.UniqueKey, "OrderingKey": f.OrderingKey, "GroupKey": f.GroupKey}
	for name, key := range keys {
		if checkText(name, key) != nil {
			return invalid("Filter.%s: it must be valid UTF-8 without NUL", name) // it may be secret
		}
	}
	return errors.Join(checkText("Filter.Type", f.Type), checkText("Filter.Error", f.Error))
}

// hidden reports whether the filter has a field that a role may not see.
func (f Filter) hidden() bool {
	return f.UniqueKey != "" || f.OrderingKey != "" || f.GroupKey != "" || f.Payload != nil
}

// bind adds the conditions that are set, for a table. A new field is a condition here.
func (f Filter) bind(b *binder, of table) {
	utc := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	byAge := b.search
	if of.byAge {
		byAge = b.given
	}
	if f.IDs != nil {
		b.given(fmt.Sprintf("tasks %v", f.IDs), "t.task_id = ANY (?::bigint[])", pq.Array(f.IDs))
	}
	if f.Type != "" && of.byType {
		b.given("type "+f.Type, "t.task_type = ?", f.Type)
	} else if f.Type != "" {
		// No index of a type fits: that would be read from its beginning for each page.
		b.search("type "+f.Type, "t.task_type || '' = ?", f.Type)
	}
	if f.State != "" {
		b.words = append(b.words, "state "+string(f.State))
	}
	if f.Reason != "" {
		b.search("reason "+string(f.Reason), "t.reason = ?", string(f.Reason))
	}
	if f.Error != "" {
		text := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(f.Error)
		b.search(fmt.Sprintf("error containing %q", f.Error), "t.last_error LIKE '%' || ? || '%'", text)
	}
	if f.UniqueKey != "" {
		b.search("of a unique key", "t.unique_key = ?", f.UniqueKey)
	}
	if f.OrderingKey != "" {
		b.search("of an ordering key", "t.ordering_key = ?", f.OrderingKey)
	}
	if f.GroupKey != "" {
		b.search("of a group key", "t.group_key = ?", f.GroupKey)
	}
	if f.Payload != nil {
		b.search("with a payload", "t.payload @> ?::jsonb", string(f.Payload))
	}
	if !f.Since.IsZero() {
		byAge("since "+utc(f.Since), of.age+" >= "+moment, f.Since.UnixMicro())
	}
	if !f.Before.IsZero() {
		byAge("before "+utc(f.Before), of.age+" < "+moment, f.Before.UnixMicro())
	}
	if f.OlderThan > 0 {
		// Not clock_timestamp(), which no index can be searched for.
		byAge(fmt.Sprintf("older than %v", f.OlderThan),
			of.age+" < now() - ?::bigint * interval '1 microsecond'", f.OlderThan.Microseconds())
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
