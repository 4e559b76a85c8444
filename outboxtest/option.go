package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/internal/store"
)

// Want is what RequireEnqueued and the like expect of a task besides its payload.
type Want interface{ want(*wanted) error }

type wanted struct {
	schema pg.Schema
	checks []check
}

func newWanted(want []Want) (w *wanted, err error) {
	w = &wanted{schema: schemaname.Default}
	for _, o := range want {
		if o == nil {
			return nil, errors.New("outboxtest: a Want is nil")
		}
		err = errors.Join(err, o.want(w))
	}
	return w, err
}

// row is a row of outbox.task.
type row struct {
	store.Task
	state string
	why   string // it does not match; "" if it does
}

// check says what is wrong with a task, or "".
type check func(*row) string

func (c check) want(w *wanted) error {
	w.checks = append(w.checks, c)
	return nil
}

// RunAt expects a task that is due at t, to the microsecond, as outbox.RunAt(t) makes it.
func RunAt(t time.Time) Want {
	t = t.Truncate(time.Microsecond)
	return check(func(r *row) string {
		if r.RunAt.Equal(t) {
			return ""
		}
		return fmt.Sprintf("run_at %s, want %s", timeText(r.RunAt), timeText(t))
	})
}

// afterSlack is how long the transaction may have been open before the task was enqueued.
const afterSlack = time.Minute

// After expects a task that is due d after it was enqueued, as outbox.After(d) makes it: run_at is
// later than created_at, which is the start of the transaction, by d and at most a minute more.
func After(d time.Duration) Want {
	return check(func(r *row) string {
		if got := r.RunAt.Sub(r.CreatedAt); got < d || got > d+afterSlack {
			return fmt.Sprintf("run_at %v after created_at, want %v", got.Round(time.Millisecond), d)
		}
		return ""
	})
}

// Priority expects a task's own priority.
func Priority(p int) Want {
	return check(func(r *row) string { return differ("priority", r.Priority, p) })
}

// MaxAttempts expects a task's own max attempts; 0 expects that it has none, as its handler was
// registered.
func MaxAttempts(n int) Want {
	return check(func(r *row) string { return differ("max_attempts", r.MaxAttempts, n) })
}

// Header expects a header of the task.
func Header(key, value string) Want {
	return check(func(r *row) string {
		if got, ok := r.Headers[key]; !ok {
			return fmt.Sprintf("no header %q, want %q", key, value)
		} else if got != value {
			return fmt.Sprintf("header %q is %q, want %q", key, got, value)
		}
		return ""
	})
}

// SchemaOption is the option [Schema], which is a [Want] and a [DrainOption].
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox. Without it that is "outbox".
func Schema(name string) SchemaOption { return SchemaOption{name} }

func (o SchemaOption) want(w *wanted) error {
	w.schema = pg.Schema(o.name)
	return o.check()
}

func (o SchemaOption) drain(s *drainSettings) error {
	s.schema = pg.Schema(o.name)
	return o.check()
}

func (o SchemaOption) check() error {
	return must(schemaname.Valid(o.name), "Schema(%q): %s", o.name, schemaname.Rule)
}

func differ(what string, got, want int) string {
	if got == want {
		return ""
	}
	return fmt.Sprintf("%s %d, want %d", what, got, want)
}

func timeText(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999Z") }

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

// isNil tells of nil pointers as well.
func isNil(q any) bool {
	v := reflect.ValueOf(q)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
