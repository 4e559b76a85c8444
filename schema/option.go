package schema

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/txoutbox/outbox/internal/schemaname"
)

// Option changes one [Migrate] or [GrantRoles]. A nil one is refused before any SQL is sent.
type Option interface{ apply(*settings) }

type option func(*settings)

func (o option) apply(s *settings)       { o(s) }
func (o SchemaOption) apply(s *settings) { s.name = o.name }

type settings struct {
	name        string
	lockTimeout time.Duration
	files       []string // the migrations
	present     present
	patience    time.Duration // for all tries together
	grace       time.Duration // for the last statement, when the context has ended
}

// LockTimeout bounds the wait for each lock, as statements queue behind one that waits. After it
// Migrate and GrantRoles release all locks and try again. A longer one lets them win against long
// transactions, and stops enqueueing for as long. 0 means Migrate's default, 2 s, also for
// GrantRoles; else it is between 1 ms and 1 min.
func LockTimeout(d time.Duration) Option { return option(func(s *settings) { s.lockTimeout = d }) }

func newSettings(opts []Option) (*settings, error) {
	s := &settings{name: schemaname.Default, files: migrations(), present: current(), patience: time.Minute, grace: 10 * time.Second}
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("schema: an Option is nil")
		}
		o.apply(s)
	}
	if s.lockTimeout == 0 {
		s.lockTimeout = 2 * time.Second
	}
	if s.lockTimeout < time.Millisecond || s.lockTimeout > time.Minute {
		return nil, fmt.Errorf("schema: LockTimeout(%v): must be between 1ms and 1m, or 0 for the default", s.lockTimeout)
	}
	return s, checkName(s.name)
}

// newest is the number of the last of the files.
func (s *settings) newest() int { return len(s.files) }

// SchemaOption is the option [Schema]: an [Option], and the only one of functions that take no other.
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox". A name is 1 to 63
// lower-case letters, digits and _, and begins with neither a digit nor pg_. A reserved word works.
func Schema(name string) SchemaOption { return SchemaOption{name} }

// nameOf is the schema that the options name.
func nameOf(opts []SchemaOption) (string, error) {
	name := schemaname.Default
	for _, o := range opts {
		name = o.name
	}
	return name, checkName(name)
}

func checkName(name string) error {
	if !schemaname.Valid(name) {
		return fmt.Errorf("schema: invalid schema name %q: %s", name, schemaname.Rule)
	}
	return nil
}

const (
	maxIdentifier = 63          // bytes; PostgreSQL cuts what is longer
	longestSuffix = "_enqueuer" // of a role's name
)

// checkRoles refuses a valid name that is too long for those of the roles.
func checkRoles(name string) error {
	if n := len(name) + len(longestSuffix); n > maxIdentifier {
		return fmt.Errorf("schema: the schema name %q is too long for roles: %s%s has %d bytes, PostgreSQL takes %d", name, name, longestSuffix, n, maxIdentifier)
	}
	return nil
}

// quote makes an identifier of a valid name, so that a reserved word can be one.
func quote(name string) string { return `"` + name + `"` }

// ownName finds the schema's name where the scripts use it: before a dot, as a literal, after
// SCHEMA, and as the beginning of a role's. They use it nowhere else but in comments.
var ownName = regexp.MustCompile(`'outbox'|\boutbox\.|\bSCHEMA outbox\b|\boutbox_(?:owner|enqueuer|worker|viewer|operator)\b`)

// rename puts another schema's name into a script.
func rename(text, name string) string {
	if name == schemaname.Default {
		return text
	}
	return ownName.ReplaceAllStringFunc(text, func(s string) string {
		if suffix, found := strings.CutPrefix(s, "outbox_"); found {
			return quote(name + "_" + suffix)
		}
		return strings.Replace(s, "outbox", quote(name), 1)
	})
}
