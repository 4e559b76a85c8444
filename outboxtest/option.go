package outboxtest

import (
	"context"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
)

// DrainOption changes one Drain.
type DrainOption interface{ drain(*drainSettings) error }

type drainSettings struct {
	ctx     context.Context
	schema  pg.Schema
	retry   bool          // failed tasks at once
	within  time.Duration // also what is due by then, from now
	maxRuns int
}

type drainFunc func(*drainSettings) error

func (f drainFunc) drain(s *drainSettings) error { return f(s) }

// RetryNow runs tasks that failed or were throttled again at once, whatever their backoff or a
// RetryAfter says, until they are done or dead. Without it such a task is left scheduled, as in
// production until its time comes.
func RetryNow() DrainOption {
	return drainFunc(func(s *drainSettings) error {
		s.retry = true
		return nil
	})
}

// Advance also runs what is due within d from now, by PostgreSQL's clock: delayed, snoozed,
// recurring, throttled and failed tasks. The Drain has a clock of its own for it, which goes from
// one due time to the next, so a task that snoozes for an hour runs once an hour. Snoozes, backoffs
// and the time since the first failure count from that clock; PostgreSQL's and the process's clocks
// do not move, so delays that a handler enqueues with count from those. A later Advance replaces
// it. d must be positive.
func Advance(d time.Duration) DrainOption {
	return drainFunc(func(s *drainSettings) error {
		s.within = d
		return must(d > 0, "Advance(%v): must be positive", d)
	})
}

// MaxRuns bounds the runs of a Drain, as handlers may enqueue each other without end: it fails the
// test when it has made n, at least 1. The default is 1,000: in one transaction, where PostgreSQL
// keeps every version of every row, each run costs more than the one before.
func MaxRuns(n int) DrainOption {
	return drainFunc(func(s *drainSettings) error {
		s.maxRuns = n
		return must(n >= 1, "MaxRuns(%d): must be at least 1", n)
	})
}

// Context is the parent of the handlers' contexts, as that of Run is in a relay. The default is
// t.Context().
func Context(ctx context.Context) DrainOption {
	return drainFunc(func(s *drainSettings) error {
		s.ctx = ctx
		return must(ctx != nil, "Context: it is nil")
	})
}

// must is an error unless ok.
func must(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("outboxtest: "+format, args...)
}
