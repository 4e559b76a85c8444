package outbox

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/txoutbox/outbox/internal/copied"
)

// NewTask is one task of an EnqueueMany; [TaskType.New] makes it type-safe.
type NewTask struct {
	Type    string
	Payload any
	Options []Option
}

// Encode returns the payload as Enqueue sends it to the database. It fails as Enqueue would that is
// given the task, with ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge or ErrInvalidOption.
func (t NewTask) Encode() (json.RawMessage, error) {
	r, err := newRow(t, &lines{})
	if err != nil {
		return nil, err
	}
	return json.RawMessage(r.payload), nil
}

// row is a checked task, ready to be bound.
type row struct {
	*settings
	taskType, payload string
}

// newRow checks a task, and adds its payload to the payloads of its call.
func newRow(t NewTask, payloads *lines) (row, error) {
	if err := checkType(t.Type); err != nil {
		return row{}, err
	}
	s, err := newSettings(t.Options)
	if err != nil {
		return row{}, err
	}
	if s.skipFailed && !s.ordered {
		return row{}, fmt.Errorf("%w: SkipFailed: only for a task that is OrderedBy a key", ErrInvalidOption)
	}
	if s.onConflict != Skip && s.unique == nil {
		return row{}, fmt.Errorf("%w: OnConflict(%s): it needs Unique or UniquePayload beside it", ErrInvalidOption, conflicts[s.onConflict])
	}
	if c, ok := t.Payload.(copied.Task); ok {
		return copyRow(t.Type, c, *s, payloads), nil
	}
	payload, err := payloads.add(t.Payload, s.maxPayload)
	if err != nil {
		return row{}, err
	}
	return row{settings: s, taskType: t.Type, payload: payload}, nil
}

// copyRow is the row of a copy, which has the limits of no option.
func copyRow(taskType string, c copied.Task, s settings, payloads *lines) row {
	s.priority, s.headers, s.orderingKey, s.ordered = c.Priority, c.Headers, c.OrderingKey, c.OrderingKey != ""
	s.encodeHeaders()
	return row{settings: &s, taskType: taskType, payload: payloads.raw(string(c.Payload))}
}

func checkType(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidType)
	case len(name) > maxTypeBytes:
		return fmt.Errorf("%w: %.32q…: %d bytes, at most %d", ErrInvalidType, name, len(name), maxTypeBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q: it is not UTF-8", ErrInvalidType, name)
	}
	for _, c := range name {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%w: %q: %q does not print", ErrInvalidType, name, c)
		}
	}
	return nil
}

// size is what the row adds to a statement, before quoting: its texts, and its numbers and times at
// their longest.
func (r row) size() int {
	n := len(r.taskType) + len(r.payload) + len(r.headerJSON) + len(r.orderingKey) + 160
	if r.unique != nil {
		n += len(r.unique.key) + 32
	}
	return n
}

// schemaOr is the row's schema, or other for the zero row.
func (r row) schemaOr(other string) string {
	if r.settings == nil {
		return other
	}
	return r.schema
}

// typesAndPayloads are the columns that each of many tasks has: their arguments, and what expands
// these.
func typesAndPayloads(tasks []row, payloads *lines) (args []any, columns string) {
	const expanded = `unnest(string_to_array($%d::text, E'\n')) AS %s`
	types, columns := tasks[0].taskType, "$1::text AS task_type"
	if slices.ContainsFunc(tasks, func(r row) bool { return r.taskType != types }) {
		all := make([]string, len(tasks))
		for i, r := range tasks {
			all[i] = r.taskType
		}
		types, columns = strings.Join(all, "\n"), fmt.Sprintf(expanded, 1, "task_type") // a line feed does not print
	}
	return []any{types, strings.TrimSuffix(payloads.text.String(), "\n")}, columns + ", " + fmt.Sprintf(expanded, 2, "payload")
}
