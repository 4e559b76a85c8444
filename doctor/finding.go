package doctor

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/schemaname"
)

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

// Option changes one [Check]. Check refuses a nil Option, a Schema of "", and a duration that is
// neither 0 nor from 1 ms to a year.
type Option func(*settings)

type settings struct {
	schema                  string
	held, starving, timeout time.Duration
	bloated                 int64         // the least bytes of an index that is checked
	dead                    int64         // the least dead rows of a table that are reported
	waited                  time.Duration // the least wait for a lock, above deadlock_timeout
	old                     int64         // the age of transaction ids that is reported
	queued                  float64       // the least part of the queue of notifications in use that is reported
	now                     func() time.Time
	task                    int64 // that is asked about; 0: none
}

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox".
func Schema(name string) Option { return func(s *settings) { s.schema = name } }

// HeldFor is the least age at which a transaction, replication slot or standby that keeps dead rows
// is reported. 0 means 5 minutes. If a table of the outbox has 10,000 dead rows, it is 1 minute at
// most.
func HeldFor(d time.Duration) Option { return func(s *settings) { s.held = d } }

// StarvingFor is how long a ready task of a type has been due at least when the type is reported,
// although a living relay has a handler for it. 0 means 1 minute.
func StarvingFor(d time.Duration) Option { return func(s *settings) { s.starving = d } }

// Task adds why a task waits ([admin.Client.Why]), as findings of the check task. 0 adds nothing.
func Task(id int64) Option { return func(s *settings) { s.task = id } }

// Timeout bounds each check's statements. A check that takes longer is reported as SeverityUnknown,
// and the others go on. 0 means 5 seconds; the most is 1 minute.
func Timeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

func newSettings(opts []Option) (settings, error) {
	s := settings{schema: schemaname.Default, bloated: 64 << 20, dead: 50_000, waited: 5 * time.Second,
		old: 1_000_000_000, queued: 0.05, now: time.Now}
	for _, o := range opts {
		if o == nil {
			return s, fmt.Errorf("%w: an Option is nil", outbox.ErrInvalidOption)
		}
		o(&s)
	}
	var errs []error
	if !schemaname.Valid(s.schema) {
		errs = append(errs, fmt.Errorf("%w: Schema(%q): %s", outbox.ErrInvalidOption, s.schema, schemaname.Rule))
	}
	bound := func(name string, d *time.Duration, most, standard time.Duration) {
		if *d < 0 || *d > most || *d > 0 && *d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%w: %s(%v): must be between 1ms and %v, or 0 for %v",
				outbox.ErrInvalidOption, name, *d, most, standard))
		}
		if *d == 0 {
			*d = standard
		}
	}
	const year = 365 * 24 * time.Hour
	bound("HeldFor", &s.held, year, 5*time.Minute)
	bound("StarvingFor", &s.starving, year, time.Minute)
	bound("Timeout", &s.timeout, time.Minute, 5*time.Second)
	return s, errors.Join(errs...)
}
