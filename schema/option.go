package schema

import (
	"errors"
	"fmt"
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
