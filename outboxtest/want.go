package outboxtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/schemaname"
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

// SchemaOption is a Want and a DrainOption: see [Schema].
type SchemaOption struct{ name string }

// Schema names the PostgreSQL schema of the outbox if it is not "outbox".
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
