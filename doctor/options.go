package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/txoutbox/outbox"
)

// ErrInvalid is returned before any SQL is sent. The error names what is out of range.
var ErrInvalid = errors.New("doctor: invalid argument")

// Option changes one Check.
type Option func(*settings)

type settings struct {
	schema                  string
	held, starving, timeout time.Duration
	bloated                 int64         // bytes of an index from which on it is looked at
	dead                    int64         // rows of a table that no vacuum came for
	waited                  time.Duration // for a lock: longer than a deadlock takes to be found
	now                     func() time.Time
}

// Schema names the PostgreSQL schema of the outbox if it is not "outbox".
func Schema(name string) Option { return func(s *settings) { s.schema = name } }

// HeldFor is from which age on a transaction, or whatever else keeps vacuum from removing dead
// rows, is reported. 0 means 5 minutes. Where the outbox has 10,000 dead rows or more it is
// reported from 1 minute on, or earlier if d is less.
func HeldFor(d time.Duration) Option { return func(s *settings) { s.held = d } }

// StarvingFor is from which age on the oldest ready task of a type is reported, though a relay that
// is alive has a handler for it. 0 means 1 minute.
func StarvingFor(d time.Duration) Option { return func(s *settings) { s.starving = d } }

// Timeout is how long one check may take in the server; then it is reported as Unknown, and the
// others go on. 0 means 5 seconds; the most is 1 minute.
func Timeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

func newSettings(opts []Option) (settings, error) {
	s := settings{schema: outbox.DefaultSchema, bloated: 64 << 20, dead: 50_000, waited: 5 * time.Second, now: time.Now}
	for _, o := range opts {
		if o == nil {
			return s, fmt.Errorf("%w: an Option is nil", ErrInvalid)
		}
		o(&s)
	}
	var errs []error
	bound := func(name string, d *time.Duration, most, standard time.Duration) {
		if *d < 0 || *d > most || *d > 0 && *d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%w: %s(%v): must be between 1ms and %v, or 0 for %v", ErrInvalid, name, *d, most, standard))
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

// sql puts the schema's name into a statement, which is written for the schema "outbox".
func (s settings) sql(query string) string {
	return strings.ReplaceAll(query, "outbox.", `"`+s.schema+`".`)
}

// name is that of something in the schema, for a statement that is shown.
func (s settings) name(of string) string {
	schema := s.schema
	if schema != outbox.DefaultSchema {
		schema = quote(schema)
	}
	if !plain.MatchString(of) {
		of = quote(of)
	}
	return schema + "." + of
}

var plain = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
