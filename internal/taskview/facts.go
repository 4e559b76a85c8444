// Package taskview has the facts, the events and the filters of tasks that the dashboard and the
// command line show, as text. A new column of a task is a line in facts, a new filter a line in
// Filters.
package taskview

import (
	"fmt"
	"strings"
	"time"

	"github.com/txoutbox/outbox/admin"
)

// Fact is a name and a value: a time.Time, a time.Duration, a number or a string.
type Fact struct {
	Name  string
	Value any
}

var facts = []struct {
	name string
	of   func(t admin.Task) any
}{
	{"key", func(t admin.Task) any { return t.Key }},
	{"type", func(t admin.Task) any { return t.Type }},
	{"priority", func(t admin.Task) any { return fmt.Sprint(t.Priority) }}, // also 0
	{"reason", func(t admin.Task) any { return strings.TrimSuffix(t.Reason+": "+Reason(t.Reason), ": ") }},
	{"outcome", func(t admin.Task) any { return Outcome(t) }},
	{"attempts", func(t admin.Task) any { return Attempts(t) }},
	{"iterations", func(t admin.Task) any { return t.Iterations }},
	{"timeout", func(t admin.Task) any { return t.Timeout }},
	{"created", func(t admin.Task) any { return t.CreatedAt }},
	{"due", func(t admin.Task) any { return t.RunAt }},
	{"last attempt", func(t admin.Task) any { return t.AttemptedAt }},
	{"ended", func(t admin.Task) any { return t.EndedAt }},
	{"kept until", func(t admin.Task) any { return t.KeepUntil }},
	{"leased until", func(t admin.Task) any { return t.LeasedUntil }},
	{"relay", func(t admin.Task) any { return t.RelayID }},
}

// Facts returns the facts of a task that are not empty or zero.
func Facts(t admin.Task) []Fact {
	out := []Fact{}
	for _, f := range facts {
		switch value := f.of(t); value {
		case "", 0, time.Duration(0), time.Time{}:
		default:
			out = append(out, Fact{f.name, value})
		}
	}
	return out
}

// Attempts is like "2 of 5".
func Attempts(t admin.Task) string {
	if t.MaxAttempts == 0 {
		return fmt.Sprint(t.Attempt)
	}
	return fmt.Sprintf("%d of %d", t.Attempt, t.MaxAttempts)
}

// Outcome is done or the reason why a finished task was discarded; "" of other tasks.
func Outcome(t admin.Task) string {
	switch {
	case t.State != admin.Finished:
		return ""
	case t.LastError == "":
		return "done"
	}
	return "discarded: " + strings.TrimPrefix(t.LastError, "discard: ")
}

// Reason is the reason of a dead letter in words.
func Reason(reason string) string {
	if words := admin.Reasons()[reason]; words != "" {
		return words
	}
	return reason
}
