package doctor

import "slices"

// Severity is how bad a [Finding] is; see [Severity.AtLeast].
type Severity string

// The severities, each worse than the one before. Later versions may have more.
const (
	SeverityOK       Severity = "ok"       // no fault; so is ""
	SeverityInfo     Severity = "info"     // nothing needs to be done
	SeverityUnknown  Severity = "unknown"  // not checked, mostly for lack of a right: Message says which
	SeverityWarning  Severity = "warning"  // a fault, now or soon
	SeverityCritical Severity = "critical" // tasks are not done, or the server is in danger
)

var severities = []Severity{SeverityOK, SeverityInfo, SeverityUnknown, SeverityWarning, SeverityCritical}

// AtLeast tells whether s is as bad as other, or worse.
func (s Severity) AtLeast(other Severity) bool { return s.rank() >= other.rank() }

func (s Severity) rank() int { return max(slices.Index(severities, s), 0) }

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
		if !worst.AtLeast(f.Severity) {
			worst = f.Severity
		}
	}
	return worst
}

// sorted puts the worst first, and keeps the order of the checks otherwise.
func sorted(found []Finding) []Finding {
	slices.SortStableFunc(found, func(a, b Finding) int { return b.Severity.rank() - a.Severity.rank() })
	return found
}
