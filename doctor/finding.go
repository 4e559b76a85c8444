package doctor

import (
	"fmt"
	"slices"
)

// Severity is how bad a [Finding] is. A greater one is worse.
type Severity int

// The severities.
const (
	SeverityOK       Severity = iota // no fault
	SeverityInfo                     // nothing needs to be done
	SeverityUnknown                  // not checked, mostly for lack of a right: Message says which
	SeverityWarning                  // a fault, now or soon
	SeverityCritical                 // tasks are not done, or the server is in danger
)

var severities = [...]string{SeverityOK: "ok", SeverityInfo: "info", SeverityUnknown: "unknown", SeverityWarning: "warning", SeverityCritical: "critical"}

// String is ok, info, unknown, warning or critical.
func (s Severity) String() string {
	if s < SeverityOK || s > SeverityCritical {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severities[s]
}

// MarshalText is String, for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is a check's result about one subject. It has no payload, key, query or connection string.
// It may have names of task types, roles, applications and hosts, which are not escaped: escape them
// before you show them.
type Finding struct {
	Check    string // which check: a stable name like held-transaction
	Severity Severity
	Subject  string // a table, a task type, a session, …; "" is the server or the outbox as a whole
	Message  string // the fault, in a sentence
	Remedy   string // the remedy, with its statement or setting if there is one; "": none is needed
}

// Worst is the greatest severity of the findings, SeverityOK without any.
func Worst(findings []Finding) Severity {
	worst := SeverityOK
	for _, f := range findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// sorted puts the worst first, and keeps the order of the checks otherwise.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int { return int(b.Severity) - int(a.Severity) })
	return found
}
