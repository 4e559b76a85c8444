package deadletter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Filter says which dead letters are meant: those that pass all fields that are set. The zero Filter means all.
type Filter struct {
	// Type is the task type.
	Type string
	// Reason is one of the constants.
	Reason Reason
	// Error is a pattern that the whole of the last error must match, as by SQL's LIKE: % stands for any text, _ for any
	// character, \ before one of the three for itself. See [Containing].
	Error string
	// DiedAfter and DiedBefore bound the time of death; DiedAfter is within the bounds, DiedBefore is not.
	DiedAfter, DiedBefore time.Time
	// OlderThan is how long ago they died at least, by PostgreSQL's clock: its now(), which is when the transaction began.
	OlderThan time.Duration
}

// Containing is the pattern of all errors that contain the text.
func Containing(text string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(text) + "%"
}

func (f Filter) zero() bool { return f == Filter{} }

// bind adds the filter's conditions.
func (f Filter) bind(b *binder) error {
	for name, text := range map[string]string{"Type": f.Type, "Error": f.Error} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%w: Filter.%s: %q: it must be valid UTF-8 without NUL", ErrInvalid, name, text)
		}
	}
	if f.Type != "" {
		b.and("task_type = %s", b.arg(f.Type))
	}
	if f.Reason != "" {
		if known := []Reason{Attempts, Handler, LostConnections, Committed}; !slices.Contains(known, f.Reason) {
			return fmt.Errorf("%w: Filter.Reason: %q: must be one of %q", ErrInvalid, f.Reason, known)
		}
		b.and("reason = %s", b.arg(string(f.Reason)))
	}
	if f.Error != "" {
		if n := len(f.Error) - len(strings.TrimRight(f.Error, `\`)); n%2 == 1 {
			return fmt.Errorf(`%w: Filter.Error: %q: the pattern ends with a \ that escapes nothing; write \\ for the character itself`, ErrInvalid, f.Error)
		}
		b.and("last_error LIKE %s", b.arg(f.Error))
	}
	for name, at := range map[string]time.Time{"DiedAfter": f.DiedAfter, "DiedBefore": f.DiedBefore} {
		if y := at.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("%w: Filter.%s: the year %d, must be between 1 and 9999", ErrInvalid, name, y)
		}
	}
	if !f.DiedAfter.IsZero() {
		b.and("died_at >= %s", b.time(f.DiedAfter))
	}
	if !f.DiedBefore.IsZero() {
		b.and("died_at < %s", b.time(f.DiedBefore))
	}
	if f.OlderThan < 0 {
		return fmt.Errorf("%w: Filter.OlderThan: %v: must not be negative", ErrInvalid, f.OlderThan)
	}
	if f.OlderThan > 0 {
		// Not clock_timestamp(), which no index can be searched for.
		b.and("died_at < now() - %s::bigint * interval '1 microsecond'", b.arg(f.OlderThan.Microseconds()))
	}
	return nil
}

// binder builds the conditions and arguments of one statement. A condition that is not set is not written, so that
// the planner sees which index fits.
type binder struct {
	conditions []string
	args       []any
}

// arg binds a value and returns its placeholder.
func (b *binder) arg(v any) string {
	b.args = append(b.args, v)
	return "$" + strconv.Itoa(len(b.args))
}

// time binds a time in a way that all drivers share.
func (b *binder) time(t time.Time) string {
	return "timestamptz 'epoch' + " + b.arg(t.UnixMicro()) + "::bigint * interval '1 microsecond'"
}

func (b *binder) and(format string, placeholders ...any) {
	b.conditions = append(b.conditions, fmt.Sprintf(format, placeholders...))
}

func (b *binder) where() string {
	if len(b.conditions) == 0 {
		return "true"
	}
	return strings.Join(b.conditions, " AND ")
}
