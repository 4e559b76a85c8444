package relay

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
	"github.com/txoutbox/outbox/internal/upkeep"
	"github.com/txoutbox/outbox/internal/wake"
	"github.com/txoutbox/outbox/schema"
)

// runParams are what a run needs of its Relay.
type runParams struct {
	settings settings
	db       *sql.DB
	log      *slog.Logger
	woken    chan struct{}    // there may be work
	once     bool             // RunOnce
	begun    func()           // called when tasks are claimed, or the database is waited for
	now      func() time.Time // of the heartbeat and its jobs
}

// relayRun is one run of a relay, from the call of Run or RunOnce to its return. newRun makes its
// parts; run starts them in order and stops them in the reverse order.
type relayRun struct {
	runParams

	ctx          context.Context // of Run
	claiming     context.Context // ends when claiming is to stop, in a copy with an ErrCopy as its cause
	stopClaiming context.CancelCauseFunc
	handling     context.Context // ends when running handlers are to stop
	stopHandling context.CancelCauseFunc
	forget       func() bool // the context of Run

	named     chan string   // a task that a wake-up names, or "" of a wake-up that names none
	withdrawn chan struct{} // another relay may have withdrawn the wake-up request
	answered  pg.Broadcast  // PostgreSQL has answered, after an error

	health     *health
	observers  *observers
	store      store.Store
	report     *report.Reporter
	suspects   *decide.Suspects
	journal    *store.Journal
	runner     *txrun.Runner
	leases     *leaserun.Leases
	rates      rates
	heart      *upkeep.Heartbeat
	listener   *pg.Listener
	scheduler  *schedule.Scheduler
	dispatcher *dispatcher
}

// newRun makes a run and starts nothing of it. The caller closes it.
func newRun(ctx context.Context, p runParams) *relayRun {
	x := &relayRun{runParams: p, ctx: ctx, named: make(chan string, 1), withdrawn: make(chan struct{}, 1)}
	// Without ctx's deadline: at a deadline a driver gives up on its own clock, perhaps before ctx
	// has ended.
	x.claiming, x.stopClaiming = context.WithCancelCause(context.WithoutCancel(ctx))
	x.handling, x.stopHandling = context.WithCancelCause(context.WithoutCancel(ctx))
	x.forget = context.AfterFunc(ctx, func() { x.stopClaiming(nil) })
	x.observers = x.newObservers()
	x.health = x.newHealth()
	x.store = x.newStore()
	x.report = report.New(x.log, x.observers, x.store.Identity)
	x.suspects = &decide.Suspects{}
	x.journal = store.NewJournal(&x.store, x.newPace(), x.settings.config.Workers)
	x.runner = x.newRunner()
	x.leases = x.newLeases()
	x.rates = newRates(&x.store, x.settings.handlers)
	x.heart = x.newHeartbeat()
	x.listener = x.newListener()
	x.scheduler = x.newScheduler()
	x.dispatcher = x.newDispatcher()
	return x
}

// close gives the connections back and ends the contexts.
func (x *relayRun) close() {
	x.store.Conns.Close()
	x.forget()
	x.stopHandling(nil)
	x.stopClaiming(nil)
}

// run returns when claiming has stopped and what runs has ended.
func (x *relayRun) run() error {
	started := false
	defer func() {
		x.observers.dead.end()
		if started {
			x.log.Info("outbox: relay stopped", "relay_id", x.store.RelayID)
		}
	}()
	if os.Getenv("PQGO_DEBUG") == "1" { // as lib/pq asks for it
		x.log.Warn("outbox: PQGO_DEBUG=1 makes lib/pq print what it sends and gets to stderr, payloads included")
	}
	noted, err := x.newCheck().run(x.claiming)
	if err != nil || x.claiming.Err() != nil {
		return err
	}
	defer wake.Register(x.wake)()

	var working parts
	working.start(x.heart.Run)
	working.start(x.journal.Run)
	working.start(x.leases.Run)
	if !x.once {
		started = true
		x.startWaiting(&working, noted.Name)
	}
	working.start(x.drain)
	working.start(func(stop <-chan struct{}) {
		select {
		case <-x.store.Conns.Gone():
			x.stopClaiming(ErrPoolClosed)
		case <-stop:
		}
	})
	select {
	case <-x.heart.First:
	case <-x.heart.Tried: // it may fail at first
	case <-x.claiming.Done():
	}
	x.begun()
	if x.once && len(x.settings.schedules) > 0 {
		err = x.newRefusals().explain(x.claiming, x.scheduler.Once(x.claiming))
		if x.claiming.Err() != nil {
			err = nil
		}
	}
	if err == nil {
		err = x.dispatcher.run()
	}
	working.stop()
	if cause := context.Cause(x.claiming); (err == nil || errors.Is(err, ErrPoolClosed)) &&
		(errors.Is(cause, ErrCopy) || errors.Is(cause, ErrPoolClosed)) {
		return cause
	}
	return err
}

// startWaiting starts the parts of a run that waits for work: LISTEN and schedules.
func (x *relayRun) startWaiting(working *parts, database string) {
	config := x.settings.config
	x.log.Info("outbox: relay started", "relay_id", x.store.RelayID, "environment", config.Environment,
		"database", database, "schema", config.Schema, "version", moduleVersion(), "schema_version", schema.Version(),
		"workers", config.Workers, "task_types", x.settings.types)
	if config.ListenDSNFunc != nil {
		working.start(x.listener.Run)
	} else {
		x.log.Info("outbox: no ListenDSN: other processes cannot wake this relay; it polls",
			"poll_interval", config.PollInterval)
	}
	if len(x.settings.schedules) > 0 {
		working.start(func(<-chan struct{}) {
			select {
			case <-x.heart.First: // the relay's row says which schedules it has
				x.scheduler.Run(x.claiming)
			case <-x.claiming.Done():
			}
		})
	}
}

// moduleVersion is the outbox's in this program: "(devel)" where it was not downloaded.
func moduleVersion() string {
	const module = "github.com/txoutbox/outbox"
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Replace == nil && m.Version != "" {
			return m.Version
		}
	}
	return "(devel)"
}

func (x *relayRun) drain(drained <-chan struct{}) {
	d := drain{x.log, x.store.RelayID, x.runner, x.leases, x.settings.config.DrainTimeout, x.stopHandling}
	d.run(x.claiming, drained)
}

// parts are the parts of a run that work in goroutines.
type parts []func()

// start runs f in a goroutine until stop is closed.
func (p *parts) start(f func(stop <-chan struct{})) {
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f(stopping)
	}()
	*p = append(*p, func() {
		close(stopping)
		<-done
	})
}

// stop ends the parts in the reverse order of their start, and waits for each.
func (p parts) stop() {
	for i := len(p) - 1; i >= 0; i-- {
		p[i]()
	}
}
