package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/origin"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/schemaname"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Order is the order of claiming inside a lane (the ready tasks of one type), after priority. In
// each order every tenth claim takes the tasks that have been due longest instead.
type Order string

// The orders of claiming.
const (
	// OrderEnqueued claims fewer attempts first, then the order of enqueueing.
	OrderEnqueued Order = "enqueued"
	// OrderRandom starts each claim at a random task of the lane's most urgent priority. Relays
	// then seldom meet, and a run of tasks for one tenant does not hold up the others.
	OrderRandom Order = "random"
)

// Config is how a relay works. It is copied by New; the zero value of a field is its default.
type Config struct {
	// Schema is the PostgreSQL schema of the outbox. Default "outbox".
	Schema string

	// Environment is the environment of the app, such as "production", from its own configuration.
	// The first relay with one writes it into the database. A relay with another one runs nothing
	// there: see [ErrCopy]. So no task of production runs in staging from a snapshot of its
	// database, which otherwise looks like production after a failover. At most 128 bytes of
	// printable text. Default none: the relay runs in every environment.
	Environment string

	// Workers is how many tasks (for Batch handlers: batches) run at once in this relay. Each run
	// of a Tx or Batch handler holds one connection of the pool, and the relay holds two more.
	// Leased tasks are claimed and ended in groups, over ten connections at most (fourteen, where
	// PostgreSQL refuses results), however many run; a call of task.Complete or task.Extend takes
	// one more while it lasts. So a relay that only has Leased handlers may have many workers and a
	// small pool. Default 10, at most 1,000.
	Workers int

	// Order is the order of claiming inside a type. Default OrderEnqueued.
	Order Order

	// WorkersByType, if set, bounds the workers of types as of now: by their load, by weights, by the
	// time of day. It returns the most workers that each type may have, by its name, including busy
	// ones. 0 holds the type back. A type that is not in the result has no such bound. Within the
	// bounds the relay chooses as ever, and the options of handlers hold as well.
	//
	// It is called before each claim, and each 50 ms or so while it holds a type back. The relay
	// claims nothing meanwhile, so it must return at once. The relay copies the result. Several
	// relays may call at the same time, so return a new map from each call. ctx has the values of
	// the context of Run, Start or RunOnce, and ends once the relay stops. A panic is logged once,
	// and types are not bounded then. RunOnce returns although tasks are held back.
	//
	// Experimental: a minor version may change it.
	WorkersByType func(ctx context.Context, load Load) map[string]int

	// PollInterval is how long an idle relay that was not woken waits before it polls again, with
	// jitter. It bounds the delay of tasks whose wake-up was lost or, without ListenDSN, never
	// sent. A busy relay may start a task up to 5 s late whose transaction committed long after
	// its insert. Default 1 s, from 10 ms to 1 min.
	PollInterval time.Duration

	// ListenDSN is the lib/pq connection string for LISTEN, over which other processes' commits
	// wake this relay. It must lead to the server itself or to a pooler in session mode. Without
	// it, or while it does not work, the relay polls only, and warns once. It is never logged.
	// While a relay that has it is idle, enqueues send NOTIFY, so PostgreSQL refuses PREPARE
	// TRANSACTION for theirs; without it in all relays of the outbox none does.
	ListenDSN string

	// ListenDSNFunc replaces a ListenDSN that changes, as when its password is rotated or its token
	// expires. It is called for each connection, at the start and after each loss, one call at a
	// time. ctx ends after 10 s. While it fails, the relay polls, warns with its error, and calls
	// it again, at least each 2 s. Set at most one of the two; nil is none.
	ListenDSNFunc func(ctx context.Context) (string, error)

	// DrainTimeout is how long a relay that stops waits for running handlers. Then their contexts
	// end with the cause outbox.ErrDraining; those runs are not counted as attempts. Default 30 s;
	// negative means to wait as long as they take, and the database to take their results.
	DrainTimeout time.Duration

	// Schedules are tasks that this relay enqueues at times of their own; see [Schedule]. They take
	// one connection more now and then. Default none.
	Schedules []Schedule

	// ParseSchedule makes the timing of a schedule that operators store (admin.Client.PutSchedule), from its
	// spec: it may return a [Cron] or an [Every], or nil for a spec that it does not understand. It has its
	// time of day in UTC; the schedule's time zone is added by the relay, as of [InZone]. Without it this
	// relay leaves stored schedules alone. Like Schedules it takes one connection more.
	//
	//	ParseSchedule: func(spec string) relay.Timing { return relay.Cron(cron.ParseStandard, spec) }
	//
	// It must return the same for the same spec in all relays: where they differ, each fires by its own. It is
	// called once for each change of a schedule, in 5 s. A panic in it is what is wrong with the schedule, as an
	// error of Cron is: see admin.Schedule.
	ParseSchedule func(spec string) Timing

	// DeadRetention is for how long dead letters are kept, by PostgreSQL's clock: whichever relay
	// gets to it deletes older ones, of all types, 1,000 at a time. 0 means for ever.
	DeadRetention time.Duration

	// OnDead, if set, is called once for each task that this relay made a dead letter, after the
	// commit: to tell somebody. The calls are made one after the other, and the relay does not wait
	// for them; a panic is logged. ctx ends after 10 s. Up to 1,000 dead letters wait for their
	// call; beyond that, and of a function that does not return after its ctx's end, calls are left
	// out, and their number logged. A relay that stops waits for the calls, for 10 s at most. No call
	// is made for a dead letter whose commit was not confirmed, or whose relay died: the table
	// tells them all (package admin).
	OnDead func(ctx context.Context, d DeadLetter)

	// Observers hear of claims, ends of runs and outages, for metrics; see [Observer]. Default none.
	Observers []Observer

	// Logger receives what an operator should know: never a payload, never a DSN. A record at which
	// its handler panics is lost, which is said once on standard error. Default slog.Default().
	Logger *slog.Logger
}

const maxWorkers = 1000

// settings are a Config that New has checked, and what follows from it. Nothing changes them.
type settings struct {
	config    Config // with defaults
	handlers  []*handler.Handler
	types     []string      // of handlers, in their order
	limits    []store.Limit // of types, that hold in all relays
	schedules []schedule.Schedule
	jobs      []upkeep.SharedJob
	conns     int // that the relay needs of its pool
}

// leasedConns is how many connections a relay uses for Leased handlers without errors: for claims,
// a poll and the results. Calls of task.Complete and Extend take more.
const leasedConns = plan.LeaseClaims + 1 + leaserun.ResultWriters

// check returns the settings of a relay with these handlers, on a pool that is limited to maxConns
// connections, or 0 for none. The error names each field that is out of range.
func (c Config) check(registered []*handler.Handler, maxConns int) (settings, error) {
	c, err := c.withDefaults(len(registered))
	s := settings{config: c, handlers: registered, jobs: upkeep.SharedJobs(c.DeadRetention)}
	var scheduleErr error
	s.schedules, scheduleErr = prepareSchedules(c.Schedules, c.Schema)
	if err = errors.Join(err, scheduleErr); err != nil {
		return settings{}, err
	}
	need, needText := min(c.Workers, leasedConns), "those of Leased handlers share them"
	for _, h := range registered {
		s.types = append(s.types, h.Type)
		if h.MaxRunning > 0 || h.MaxRunningPerKey > 0 || h.Rate > 0 {
			s.limits = append(s.limits, store.Limit{TaskType: h.Type, MaxRunning: h.MaxRunning,
				MaxRunningPerKey: h.MaxRunningPerKey, Rate: h.Rate, RatePer: h.RatePer})
		}
		if h.Kind != outbox.KindLeased {
			need, needText = c.Workers, "each may hold one"
		}
	}
	own, ownText := 2, "two"
	if s.fires() {
		own, ownText = 3, "three, with Schedules or ParseSchedule"
	}
	if s.conns = need + own; maxConns > 0 && maxConns < s.conns {
		return settings{}, fmt.Errorf("relay: the pool is limited to %d connections (SetMaxOpenConns), "+
			"but %d workers need %d: %s, and the relay %s", maxConns, c.Workers, s.conns, needText, ownText)
	}
	return s, nil
}

// fires reports whether the relay has schedules, or may have stored ones.
func (s settings) fires() bool { return len(s.schedules) > 0 || s.config.ParseSchedule != nil }

// fits is an error if a pool that is limited to maxConns connections, or 0 for none, is too small
// for this relay beside the others of the process that run on it.
func (s settings) fits(maxConns int, others pg.Use) error {
	if sum := others.Conns + s.conns; others.Relays > 0 && maxConns > 0 && maxConns < sum {
		return fmt.Errorf("relay: the pool is limited to %d connections (SetMaxOpenConns), but this relay needs %d, and "+
			"those that run on it (%d) need %d: use SetMaxOpenConns(%d), fewer Config.Workers, or a *sql.DB for each relay",
			maxConns, s.conns, others.Relays, others.Conns, sum)
	}
	return nil
}

func (c Config) withDefaults(registered int) (Config, error) {
	if c.Schema == "" {
		c.Schema = schemaname.Default
	}
	if c.Workers == 0 {
		c.Workers = 10
	}
	c.Order = cmp.Or(c.Order, OrderEnqueued)
	if c.PollInterval == 0 {
		c.PollInterval = time.Second
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Observers = slices.Clone(c.Observers)
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("relay: "+format, args...)) }
	if !schemaname.Valid(c.Schema) {
		fail("Config.Schema: %q: %s", c.Schema, schemaname.Rule)
	}
	if !origin.ValidEnvironment(c.Environment) {
		fail("Config.Environment: %.200q: use at most %d bytes of printable text", c.Environment, origin.MaxEnvironment)
	}
	if c.Workers < 1 || c.Workers > maxWorkers {
		fail("Config.Workers: %d: must be between 1 and %d, or 0 for 10", c.Workers, maxWorkers)
	}
	if c.Order != OrderEnqueued && c.Order != OrderRandom {
		fail("Config.Order: %.32q: must be OrderEnqueued or OrderRandom", c.Order)
	}
	if c.PollInterval < 10*time.Millisecond || c.PollInterval > time.Minute {
		fail("Config.PollInterval: %v: must be between 10ms and 1m, or 0 for 1s", c.PollInterval)
	}
	if c.DeadRetention < 0 {
		fail("Config.DeadRetention: %v: must not be negative; 0 keeps dead letters for ever", c.DeadRetention)
	}
	switch {
	case c.ListenDSN == "":
	case c.ListenDSNFunc != nil:
		fail("Config.ListenDSN and Config.ListenDSNFunc are both set: set one of them")
	default:
		if _, err := pq.NewConnector(c.ListenDSN); err != nil {
			fail("Config.ListenDSN is not a connection string of lib/pq (its text is not shown)")
		}
		dsn := c.ListenDSN
		c.ListenDSNFunc = func(context.Context) (string, error) { return dsn, nil }
	}
	if registered == 0 {
		fail("the registry has no handler: register the handlers before relay.New")
	}
	return c, errors.Join(errs...)
}

// Load is what Config.WorkersByType decides from.
//
// Experimental: a minor version may change it.
type Load struct {
	Free  int        // workers that have nothing to do
	Types []TypeLoad // those that the relay has a handler for, in the order of their names
}

// TypeLoad is the load of one task type in this relay, as far as its last poll shows.
//
// Experimental: a minor version may change it.
type TypeLoad struct {
	Type     string
	Running  int           // workers that are busy with it
	Waiting  bool          // a task is due; not admin.StateWaiting
	Priority int           // if Waiting, of its most urgent task, with handlers.Priority; lower is more urgent
	Age      time.Duration // if Waiting, since its first task became due
}

// bounds asks Config.WorkersByType, of which anything may come.
type bounds struct {
	ctx    context.Context
	ask    func(context.Context, Load) map[string]int
	types  map[string]bool
	log    *slog.Logger
	logged bool
}

// of is plan.Params.Bound. After a panic there is no bound.
func (b *bounds) of(free int, types []plan.Load) (out map[string]int) {
	load := Load{Free: free, Types: make([]TypeLoad, len(types))}
	for i, t := range types {
		load.Types[i] = TypeLoad(t)
	}
	if err := guard.Call(func() { out = maps.Clone(b.ask(b.ctx, load)) }); err != nil {
		b.logOnce("outbox: Config.WorkersByType panicked; types are not bounded",
			"error", pgerr.Text(err), "stack", string(guard.Stack(err)))
		return nil
	}
	for name := range out {
		if !b.types[name] {
			b.logOnce("outbox: Config.WorkersByType bounds a type that this relay has no handler for", "task_type", name)
		}
	}
	return out
}

func (b *bounds) logOnce(text string, attrs ...any) {
	if !b.logged {
		b.logged = true
		b.log.Error(text, attrs...)
	}
}

// appLog is the app's slog.Handler. A record at which it panics is lost, which is said once on
// standard error.
type appLog struct {
	slog.Handler
	told *sync.Once
}

func newAppLog(l *slog.Logger) *slog.Logger { return slog.New(appLog{l.Handler(), &sync.Once{}}) }

func (l appLog) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	l.call(func() { enabled = l.Handler.Enabled(ctx, level) })
	return enabled
}

func (l appLog) Handle(ctx context.Context, record slog.Record) (err error) {
	l.call(func() { err = l.Handler.Handle(ctx, record) })
	return err
}

func (l appLog) call(f func()) {
	if err := guard.Call(f); err != nil {
		l.told.Do(func() {
			fmt.Fprintln(os.Stderr, "outbox: the handler of Config.Logger panicked; records are lost:", pgerr.Text(err))
		})
	}
}
