// Package relay claims the tasks that outbox.Enqueue left in PostgreSQL and runs their handlers.
//
//	r, err := relay.New(db, registry, relay.Config{}) // db has room for Workers + 2 connections
//	…
//	err = r.Run(ctx)                                  // until ctx ends, and what runs has ended
//
// A [Relay] is one worker pool of one process. Any number of relays, in any number of processes,
// share the work by SELECT … FOR UPDATE SKIP LOCKED; there is no leader. [Config] says how one
// works, with defaults for all of it; [Relay.RunOnce] is for cron and tests.
//
// A relay keeps no state that its database does not have: it may be killed at any time, and others
// take its tasks over. See docs/guide/production.md for how to run it, docs/design.md for how it
// works and what it promises.
package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
)

// ErrRunning is returned by Run and RunOnce of a Relay that runs already.
var ErrRunning = errors.New("relay: it is running already")

// Relay claims tasks and runs their handlers. Its methods are safe for concurrent use; one Run or
// RunOnce at a time.
type Relay struct {
	db        *sql.DB
	config    Config
	log       *slog.Logger
	handlers  []*handler.Handler
	types     []string            // of handlers, in their order
	schedules []schedule.Schedule // prepared
	jobs      []upkeep.SharedJob
	host      string
	pid       int
	woken     chan struct{}
	named     chan string   // tasks that wake-ups name
	withdrawn chan struct{} // another relay may have withdrawn the wake-up request
	answered  pg.Broadcast  // PostgreSQL has, after an error

	mu     sync.Mutex
	active bool
	life   *life // of the present run

	// Of the present run.
	runner    *run.Runner
	observers *observers
	journal   *store.Journal
	leases    *run.Leases
	born      time.Time
	heart     *upkeep.Heartbeat
	rates     rates
	listener  *pg.Listener
}

// leasedConns is how many connections a relay uses for Leased handlers while all goes well, but for
// the calls of task.Complete and Extend: for claims, a poll and the results.
const leasedConns = leaseClaims + 1 + run.ResultWriters

// New returns a relay that claims from db the tasks of all types that are registered by now. db is
// a pool on lib/pq or pgx's stdlib driver; best it is the relay's own, with room for Workers + 2
// connections, one more with Schedules: New returns an error if its limit (SetMaxOpenConns) is
// lower, as handlers would wait for each other. Where all handlers are Leased it need have room for
// 12 only, whatever Workers is (see there). The error names every field of config that is out of
// range. New does not connect.
func New(db *sql.DB, registry *handlers.Registry, config Config) (*Relay, error) {
	if db == nil || registry == nil {
		return nil, errors.New("relay: New needs a *sql.DB and a *handlers.Registry, not nil")
	}
	hs := registry.Handlers()
	c, err := config.withDefaults(len(hs))
	schedules, scheduleErr := config.Schedules.prepare()
	err = errors.Join(err, scheduleErr)
	own, ownText := 2, "two"
	if len(schedules) > 0 {
		own, ownText = 3, "three, with Schedules"
	}
	need, needText := c.Workers, "each may hold one"
	if !slices.ContainsFunc(hs, func(h *handler.Handler) bool { return h.Kind != handler.KindLeased }) {
		need, needText = min(c.Workers, leasedConns), "those of Leased handlers share them"
	}
	if limit := db.Stats().MaxOpenConnections; err == nil && limit > 0 && limit < need+own {
		err = fmt.Errorf("relay: the pool is limited to %d connections (SetMaxOpenConns), but %d workers need %d: %s, and the relay %s", limit, c.Workers, need+own, needText, ownText)
	}
	if err != nil {
		return nil, err
	}
	c.Observers = slices.Clone(c.Observers)
	r := &Relay{db: db, config: c, log: newAppLog(c.Logger), handlers: hs, schedules: schedules,
		woken: make(chan struct{}, 1), named: make(chan string, 1), withdrawn: make(chan struct{}, 1),
		jobs: upkeep.SharedJobs(c.DeadRetention), pid: os.Getpid()}
	for _, h := range hs {
		r.types = append(r.types, h.Type)
	}
	r.host, _ = os.Hostname()
	return r, nil
}

// Run claims and runs tasks until ctx ends. Then it claims no more, waits for what runs up to
// Config.DrainTimeout, ends the contexts of the handlers that still run with the cause
// outbox.ErrDraining, and returns within 15 s more, or 25 s while OnDead is being called; what a
// handler that ignores its context leaves undone is given back.
//
// It survives whatever happens to the database, and returns nil after ctx has ended. Errors:
// ErrRunning; and at the start schema.ErrNotMigrated, schema.ErrNewer, schema.ErrUnsupportedServer,
// schema.ErrUnsupportedEncoding, schema.ErrRowSecurity, schema.ErrStatementPooling and
// schema.ErrReadOnly. A server that becomes read-only later, and one that is a standby, is an outage
// that Run waits for. A copy of the database is one that it claims nothing in until the copy is
// adopted: see [ErrCopy].
func (r *Relay) Run(ctx context.Context) error { return r.start(ctx, false) }

// RunOnce runs tasks until none is due that this relay could take, and returns: for tests and cron.
// It does not wait for tasks that are due later, but it does take over leased tasks of dead relays,
// which takes 10 s. Unlike Run it returns the first error that the database gives, once what runs
// has ended; if PostgreSQL refuses the result of a Leased task, after a drain. When ctx ends, it
// drains as Run does and returns nil. It fires each schedule that is due once, before it begins. In a
// copy of the database it returns an [ErrCopy].
func (r *Relay) RunOnce(ctx context.Context) error { return r.start(ctx, true) }

// Wake makes the relay poll for work now: after a commit in the same process that may have
// enqueued. It does not block. outbox.InTx does it by itself.
func (r *Relay) Wake() { run.Poke(r.woken) }

// wakeNamed hears of a task that a wake-up names, or "" of one that names none. The latest counts, as
// the dispatcher takes wake-ups together that come fast; polls find the others.
func (r *Relay) wakeNamed(task string) {
	select {
	case <-r.named:
	default:
	}
	r.named <- task // by the listener only, so there is room
}

// start runs once, or until ctx ends: anew when the database was replaced by a copy.
func (r *Relay) start(ctx context.Context, once bool) error {
	r.mu.Lock()
	if r.active {
		r.mu.Unlock()
		return ErrRunning
	}
	r.active = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.active = false
		r.mu.Unlock()
	}()
	for {
		err := r.session(ctx, once)
		if once || !errors.Is(err, ErrCopy) {
			return err
		}
	}
}

// session sets up one run, dispatches, and tears everything down again.
func (r *Relay) session(ctx context.Context, once bool) error {
	// Without ctx's deadline: at one, a driver gives up on its own clock, perhaps before ctx has
	// ended.
	claiming, stopClaiming := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopClaiming(nil)
	defer context.AfterFunc(ctx, func() { stopClaiming(nil) })()
	handling, stopHandling := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopHandling(nil)
	r.born = time.Now()
	r.runner = r.newRunner(claiming, handling)
	defer r.runner.Conns.Close()
	r.rates = newRates(&r.runner.Store, r.handlers)
	r.heart = r.newHeartbeat(time.Now)
	r.heart.Copied = func(err error) {
		r.copied(err)
		stopClaiming(err)
	}
	r.observers.ahead = r.heart.Ahead
	r.listener = &pg.Listener{DSN: r.config.ListenDSNFunc, Channel: r.config.Schema, ID: r.runner.RelayID, PollInterval: r.config.PollInterval, Pool: r.runner.Conns,
		Log: r.log, Answered: &r.answered, Wake: r.Wake, Named: r.wakeNamed, Withdrawn: func() { run.Poke(r.withdrawn) }}
	defer r.live(ctx)()
	started := false
	defer func() {
		if started {
			r.log.Info("outbox: relay stopped", "relay_id", r.runner.RelayID)
		}
	}()
	defer r.observers.dead.end()

	if os.Getenv("PQGO_DEBUG") == "1" { // as lib/pq asks for it
		r.log.Warn("outbox: PQGO_DEBUG=1 makes lib/pq print what it sends and gets to stderr, payloads included")
	}
	if err := r.newCheck(once).run(claiming); err != nil || r.runner.Stopping() {
		return err
	}
	defer wake.Register(r.Wake)()
	d := r.newDispatcher(claiming, once)
	d.stopClaiming = func() { stopClaiming(nil) }
	r.leases.Ended, r.leases.Stuck = d.ended, d.resultStuck
	stopJournal := background(r.journal.Run)
	stopLeases := background(r.leases.Run)
	stopHeart := background(r.heart.Run)
	stopListener := func() {}
	if !once {
		r.log.Info("outbox: relay started", "relay_id", r.runner.RelayID, "schema", r.config.Schema, "workers", r.config.Workers, "task_types", r.types)
		started = true
		if r.config.ListenDSNFunc != nil {
			stopListener = background(r.listener.Run)
		} else {
			r.log.Info("outbox: no ListenDSN: other processes cannot wake this relay; it polls", "poll_interval", r.config.PollInterval)
		}
	}
	stopSchedules := func() {}
	if !once && len(r.schedules) > 0 {
		stopSchedules = background(func(<-chan struct{}) {
			select {
			case <-r.heart.First: // others know whose its schedules are
				r.newScheduler().Run(claiming)
			case <-claiming.Done():
			}
		})
	}
	ends := drain{r.log, r.runner, r.leases, r.config.DrainTimeout, stopHandling}
	stopDraining := background(func(drained <-chan struct{}) { ends.run(claiming, drained) })
	select {
	case <-r.heart.First:
	case <-r.heart.Tried: // it may fail at first
	case <-claiming.Done():
	}
	if once && len(r.schedules) > 0 {
		if err := r.newScheduler().Once(claiming); err != nil && !r.runner.Stopping() {
			d.failed = err
		}
	}
	d.run()
	stopDraining()
	stopSchedules()
	stopListener()
	stopLeases()
	stopJournal()
	stopHeart()
	if cause := context.Cause(claiming); d.failed == nil && errors.Is(cause, ErrCopy) {
		return cause
	}
	return d.failed
}

// background runs f in a goroutine; the returned function stops it and waits.
func background(f func(stop <-chan struct{})) (stop func()) {
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f(stopping)
	}()
	return func() {
		close(stopping)
		<-done
	}
}
