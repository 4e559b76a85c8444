package doctor

import (
	"fmt"
	"slices"
)

// Severity is how bad a [Finding] is. A greater one is worse.
type Severity int

// The severities.
const (
	OK       Severity = iota // looked at, and nothing is wrong
	Info                     // to know; nothing needs to be done
	Unknown                  // it could not be looked at, mostly for want of a right: What says which
	Warning                  // it is wrong, or will be
	Critical                 // tasks are not done, or the server is in danger
)

var severities = [...]string{OK: "ok", Info: "info", Unknown: "unknown", Warning: "warning", Critical: "critical"}

// String is ok, info, unknown, warning or critical.
func (s Severity) String() string {
	if s < OK || s > Critical {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severities[s]
}

// MarshalText is String, for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is what one check found about one subject. It has no payload, key, query's text or
// connection string in it; it does have the names of task types, roles, sessions' application names
// and hosts of relays, which are as whoever set them wrote them: escape them before you show them.
type Finding struct {
	Check    string // which check: a stable name like held-transaction
	Severity Severity
	Subject  string // what it is about: a table, a task type, a session; "" for the server or the outbox as a whole
	What     string // what was found, in a sentence
	Do       string // what to do, with the statement or the setting where there is one; "" where nothing is
}

// Worst is the greatest severity of the findings, OK without any.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// sorted keeps the order of the checks among findings that are as bad.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return found
}
