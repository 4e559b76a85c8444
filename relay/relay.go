// Package relay claims the tasks that outbox.Enqueue left in PostgreSQL and runs their handlers.
//
//	r, err := relay.New(db, registry, relay.Config{}) // db has room for Workers + 2 connections
//	…
//	err = r.Start(context.Background()) // it works in the background
//	…
//	err = r.Stop(ctx)                   // returns when what runs has ended
//
// A [Relay] is one worker pool of one process. Any number of relays, in any number of processes,
// share the work by SELECT … FOR UPDATE SKIP LOCKED; there is no leader. [Config] says how one
// works, with defaults for all of it. [Relay.Run] is for a process that does nothing else, and
// [Relay.RunOnce] for cron and tests.
//
// A relay keeps no state that its database does not have: it may be killed at any time, and others
// take its tasks over. See https://github.com/txoutbox/outbox/blob/main/docs/guide/production.md
// for how to run it, https://github.com/txoutbox/outbox/blob/main/docs/design.md for how it works
// and what it promises.
package relay

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
)

// ErrRunning is returned by Start, Run and RunOnce of a Relay that runs already, or still drains.
var ErrRunning = errors.New("relay: it is running already")

// Relay claims tasks and runs their handlers. Its methods are safe for concurrent use; one Start,
// Run or RunOnce at a time. It may start again once it has ended.
type Relay struct {
	db       *sql.DB
	settings settings
	log      *slog.Logger
	woken    chan struct{} // there may be work

	mu      sync.Mutex
	current *execution    // nil if there was none
	done    chan struct{} // of the latest execution, or of the first one to come
	health  *health       // of the present run
}

// New returns a relay that claims from db the tasks of all types that are registered by now,
// without connecting. db is a pool on lib/pq or pgx's stdlib driver, preferably the relay's own. It
// has room for Workers + 2 connections, one more with Schedules. If all handlers are Leased, 12 are
// enough for any Workers, 13 with Schedules. New refuses a lower limit of db (SetMaxOpenConns), as
// handlers would wait for each other. The limit has room for the relays of this process as well
// that run on db by now. New refuses a nil db or registry, and a registry without handlers. The
// error names each invalid field of config.
func New(db *sql.DB, registry *handlers.Registry, config Config) (*Relay, error) {
	if db == nil || registry == nil {
		return nil, errors.New("relay: New needs a *sql.DB and a *handlers.Registry, not nil")
	}
	limit := db.Stats().MaxOpenConnections
	checked, err := config.check(handler.Registered(registry), limit)
	if err == nil {
		err = checked.fits(limit, pg.UseOf(db))
	}
	if err != nil {
		return nil, err
	}
	return &Relay{db: db, settings: checked, log: newAppLog(checked.config.Logger), woken: make(chan struct{}, 1),
		done: make(chan struct{})}, nil
}

// Run claims and runs tasks until ctx ends, or Stop is called. Then it drains: it claims no more,
// and waits for running handlers up to Config.DrainTimeout. After that it ends their contexts with
// the cause outbox.ErrDraining, and returns within 15 s more, or 25 s while OnDead is being called.
// Tasks of a handler that ignores its context are given back.
//
// It survives any failure of the database, and returns nil after ctx has ended. Errors: ErrRunning;
// and at the start schema.ErrNotMigrated, schema.ErrNewer, schema.ErrUnsupportedServer,
// schema.ErrUnsupportedEncoding, schema.ErrRowSecurity, schema.ErrStatementPooling and
// schema.ErrReadOnly. A server that becomes read-only later, and one that is a standby, is an
// outage that Run waits for. It also waits for a right or an object that is missing, see
// [ErrRefused]. In a copy of the database it claims nothing until the copy is adopted:
// see [ErrCopy].
func (r *Relay) Run(ctx context.Context) error { return r.runHere(ctx, false) }

// RunOnce runs tasks until none is due that this relay could take, and returns: for tests and cron.
// It does not wait for tasks that are due later, but it does take over leased tasks of dead relays:
// https://github.com/txoutbox/outbox/blob/main/docs/guide/handlers.md#leases says when. Unlike Run
// it returns the first error that the database gives, once what runs has ended; if PostgreSQL
// refuses the result of a Leased task, after a drain. When ctx ends or Stop is called, it drains as
// Run does and returns nil. It fires each schedule that is due once, before it begins. In a copy of
// the database it returns an [ErrCopy].
func (r *Relay) RunOnce(ctx context.Context) error { return r.runHere(ctx, true) }

// Start runs the relay in the background, as [Relay.Run] does, until Stop is called or ctx ends.
// ctx is for as long as the relay works: a ctx that ends with a time limit of the app's start ends
// the relay.
//
//	if err := r.Start(context.WithoutCancel(ctx)); err != nil {
//		return err
//	}
//	select {
//	case <-ctx.Done(): // SIGTERM
//	case <-r.Done(): // it ended by itself; Stop returns why
//	}
//	err := server.Shutdown(limit) // no more requests
//	return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
//
// Start returns nil once the relay claims tasks. It also returns nil while PostgreSQL is unavailable,
// or the database is a copy: the relay waits for the database in the background, and Health says why.
// It returns ErrRunning, and the errors of Run's start. It returns nil if a Stop or the end of ctx
// comes first.
//
// A relay that waited may still meet an error of Run's start. Then it ends: Done is closed, the log
// has the error, Health is ErrNotRunning, and Stop returns the error.
func (r *Relay) Start(ctx context.Context) error {
	x, err := r.begin(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer close(x.done)
		if err := r.execute(x, false); err != nil && closed(x.begun) {
			r.log.Error("outbox: relay ended", "error", pgerr.LogText(err))
		}
	}()
	select {
	case <-x.begun:
		return nil
	case <-x.done:
		r.forget(x)
		return x.err
	}
}

// Stop ends the relay, whichever of Start, Run and RunOnce it works by: it claims no more, and drains
// as Run does at the end of its context. Stop returns when that is done, with the error that the
// relay ended with. It returns nil if the relay was never started, or ended without an error.
//
// If ctx ends first, Stop returns its error, and the drain goes on. It is bounded by
// Config.DrainTimeout. A handler that calls Stop waits for itself.
func (r *Relay) Stop(ctx context.Context) error {
	r.mu.Lock()
	x := r.current
	r.mu.Unlock()
	if x == nil {
		return nil
	}
	x.stop()
	select {
	case <-x.done:
		return x.err
	case <-ctx.Done():
	}
	if closed(x.done) {
		return x.err
	}
	return ctx.Err()
}

// Done is closed when the relay has ended, whichever of Start, Run and RunOnce it worked by, and
// for whatever reason: what it ran has ended too, and it uses no connection. Before the first run
// Done returns the channel of that run. Each later run has a new channel. Why it ended is returned
// by Run and RunOnce, and after Start by Stop.
func (r *Relay) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// Health is nil while the relay runs and claims: its latest heartbeat came through within the last
// 10 s, by its own clock, no outage is known, and no type fails again and again. Else it is an
// ErrNotRunning, ErrOutage, ErrPoolBusy, ErrRefused, ErrCopy, schema.ErrRowSecurity (within half a
// minute), ErrNoHeartbeat, ErrTypeFails or ErrOrderingFails, with the time of its beginning if that
// is known. It sends no statement and does not block: an idle relay notices an outage with its next
// poll, within two seconds or so at the default PollInterval, and a server that does not answer
// within 10 s. The text has neither a DSN, nor a host, nor a payload, nor PostgreSQL's words, which
// are in the log.
//
// It is for readiness. A liveness probe that restarts the process should not use it: a relay
// survives outages by itself, and what it runs would be lost with the process.
func (r *Relay) Health() error {
	r.mu.Lock()
	h := r.health
	r.mu.Unlock()
	if h == nil {
		return ErrNotRunning
	}
	return h.err()
}

// execution is one Start, Run or RunOnce.
type execution struct {
	ctx   context.Context
	stop  context.CancelFunc // of ctx
	begun chan struct{}      // closed when it claims tasks, or waits for its database
	done  chan struct{}      // closed at its end
	err   error              // once done
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// begin makes the present execution, which its caller ends by closing done.
func (r *Relay) begin(ctx context.Context) (*execution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil && !closed(r.current.done) {
		return nil, ErrRunning
	}
	if closed(r.done) {
		r.done = make(chan struct{})
	}
	x := &execution{begun: make(chan struct{}), done: r.done}
	x.ctx, x.stop = context.WithCancel(ctx)
	r.current = x
	return x, nil
}

// runHere returns at the end of the execution.
func (r *Relay) runHere(ctx context.Context, once bool) error {
	x, err := r.begin(ctx)
	if err != nil {
		return err
	}
	defer r.forget(x)
	defer close(x.done)
	return r.execute(x, once)
}

// execute runs once, or until x is stopped: anew when the database was replaced by a copy.
func (r *Relay) execute(x *execution, once bool) error {
	defer x.stop()
	begun := sync.OnceFunc(func() { close(x.begun) })
	others, leave := pg.Join(r.db, r.settings.conns)
	defer leave()
	if err := r.settings.fits(r.db.Stats().MaxOpenConnections, others); err != nil { // they began after New
		r.log.Warn("outbox: relays may wait for connections", "error", err)
	}
	for {
		x.err = r.run(x.ctx, r.params(once, begun, time.Now))
		if once || !errors.Is(x.err, ErrCopy) {
			return x.err
		}
	}
}

// run makes one run and waits for its end.
func (r *Relay) run(ctx context.Context, p runParams) error {
	x := newRun(ctx, p)
	defer x.close()
	r.showHealth(x.health)
	x.health.begin()
	defer func() {
		r.showHealth(nil)
		x.health.end()
	}()
	return x.run()
}

func (r *Relay) params(once bool, begun func(), now func() time.Time) runParams {
	return runParams{settings: r.settings, db: r.db, log: r.log, woken: r.woken, once: once, begun: begun, now: now}
}

func (r *Relay) showHealth(of *health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health = of
}

// forget has Stop return nil after an execution that has ended.
func (r *Relay) forget(x *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == x {
		r.current = nil
	}
}
