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
// take its tasks over. See docs/guide/production.md for how to run it, docs/design.md for how it
// works and what it promises.
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
// docs/guide/handlers.md#leases says when. Unlike Run it returns the first error that the database
// gives, once what runs has ended; if PostgreSQL refuses the result of a Leased task, after a
// drain. When ctx ends or Stop is called, it drains as Run does and returns nil. It fires each
// schedule that is due once, before it begins. In a copy of the database it returns an [ErrCopy].
func (r *Relay) RunOnce(ctx context.Context) error { return r.runHere(ctx, true) }

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

func (r *Relay) params(once bool, begun func(), now func() time.Time) runParams {
	return runParams{settings: r.settings, db: r.db, log: r.log, woken: r.woken, once: once, begun: begun, now: now}
}

func (r *Relay) showHealth(of *health) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health = of
}
