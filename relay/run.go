package relay

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/await"
	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/progress"
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
	tail       *teller
	observers  *observers
	store      store.Store
	report     *report.Reporter
	suspects   *decide.Suspects
	journal    *store.Journal
	board      *progress.Board
	answers    *answers
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
	x.store = x.newStore()
	x.tail = newTeller(x.store.RelayID, x.settings.config.Schema, x.store.Conns, x.log, x.ahead)
	x.observers = x.newObservers()
	x.health = x.newHealth()
	x.answers = newAnswers(x.settings.config.Schema, x.store.Conns)
	x.report = report.New(x.log, x.observers, x.store.Identity, x.answers.runEnded)
	x.suspects = &decide.Suspects{}
	x.journal = store.NewJournal(&x.store, x.newPace(), x.settings.config.Workers)
	x.board = x.newBoard()
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
	working.start(x.tail.run) // it ends last, with what the others told
	working.start(x.heart.Run)
	working.start(x.journal.Run)
	working.start(x.board.Run)
	working.start(x.answers.run)
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
	if x.once && x.settings.fires() {
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
		working.start(func(stop <-chan struct{}) {
			defer await.Listen(config.Schema, x.listener.Works)()
			x.listener.Run(stop)
		})
	} else {
		x.log.Info("outbox: no ListenDSN: other processes cannot wake this relay; it polls",
			"poll_interval", config.PollInterval)
	}
	if x.settings.fires() {
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

const mostNamed = 20 // tasks of a type in a record

// drain logs the number of running tasks when claiming ends, and their ids when the timeout has passed.
// Then it ends their handlers' contexts. Some time later it abandons results that the database does
// not take.
func (x *relayRun) drain(drained <-chan struct{}) {
	timeout := x.settings.config.DrainTimeout
	select {
	case <-x.claiming.Done():
	case <-drained:
		return
	}
	if running := x.underway(); len(running) > 0 {
		counts := map[string]int{}
		for taskType, ids := range running {
			counts[taskType] = len(ids)
		}
		x.log.Info("outbox: relay stopping; it waits for the tasks that run",
			"relay_id", x.store.RelayID, "tasks", counts, "drain_timeout", timeout)
	}
	if errors.Is(context.Cause(x.claiming), ErrPoolClosed) { // no result is written any more
		x.stopHandling(outbox.ErrDraining)
		x.leases.Abandon()
		return
	}
	if timeout < 0 {
		return
	}
	select {
	case <-time.After(timeout):
	case <-drained:
		return
	}
	running := x.underway()
	for taskType, ids := range running {
		slices.Sort(ids)
		running[taskType] = ids[:min(len(ids), mostNamed)]
	}
	x.log.Warn("outbox: the drain timeout has passed; handlers are stopped, their tasks will run again",
		"task_ids", running)
	x.stopHandling(outbox.ErrDraining)
	select {
	case <-time.After(call.AbandonAfter + pg.StatementTimeout/2):
		x.leases.Abandon()
	case <-drained:
	}
}

// underway are the tasks whose handlers run, by type.
func (x *relayRun) underway() map[string][]int64 {
	out := x.leases.Underway()
	maps.Copy(out, x.runner.Underway()) // of other types
	return out
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

// A run of a relay has these parts. Each gets what it needs; none knows the Relay.

func (x *relayRun) newObservers() *observers {
	config := x.settings.config
	dead := newDeadLetters(x.claiming, config.OnDead, x.log)
	return &observers{ctx: context.WithoutCancel(x.ctx), all: config.Observers, dead: dead, log: x.log,
		types: x.settings.types, ahead: x.ahead, tail: x.tail}
}

// ahead is PostgreSQL's clock less this process's.
func (x *relayRun) ahead() time.Duration { return x.heart.Ahead() }

func (x *relayRun) newHealth() *health {
	return &health{startedAt: time.Now(), ctx: x.ctx, leaseEnd: func() time.Time { return x.heart.LeaseEnd() },
		tell: x.observers.tellChange, log: x.log, failing: map[string]typeFailure{}, refused: map[string]string{}}
}

func (x *relayRun) newStore() store.Store {
	return store.Store{Schema: pg.Schema(x.settings.config.Schema), RelayID: store.NewUUID(), Conns: pg.NewPool(x.db),
		Identity: &store.Identity{}}
}

// newRunner returns the part that runs Tx and Batch tasks.
func (x *relayRun) newRunner() *txrun.Runner {
	return txrun.New(txrun.Params{Store: &x.store, Report: x.report, Journal: x.journal, Board: x.board,
		Suspects: x.suspects,
		Claiming: x.claiming, Handling: x.handling})
}

// newLeases returns the part that runs Leased tasks.
func (x *relayRun) newLeases() *leaserun.Leases {
	return leaserun.New(leaserun.Params{Store: &x.store, Report: x.report, Suspects: x.suspects, Board: x.board,
		NewPace: x.newPace, Handling: x.handling,
		Ended: func(results []*leaserun.Result) { x.dispatcher.leasesEnded(results) },
		Stuck: func(h *handler.Handler, err error, began time.Time, first bool) {
			x.dispatcher.resultStuck(h, err, began, first)
		}})
}

func (x *relayRun) newBoard() *progress.Board {
	return progress.New(progress.Params{Schema: x.store.Schema, RelayID: x.store.RelayID, Pool: x.store.Conns, Log: x.log,
		Ahead: x.ahead})
}

// limitsOf is how many tasks the relay runs at once of a type, what limits a type has, and whether a
// history, as JSON.
func limitsOf(workers int, handlers []*handler.Handler) string {
	type limits struct {
		Relay int  `json:"relay,omitempty"`   // MaxRunningPerRelay
		All   int  `json:"all,omitempty"`     // MaxRunning
		Keeps bool `json:"history,omitempty"` // Retention
	}
	of := map[string]limits{}
	for _, h := range handlers {
		if l := (limits{h.MaxRunningPerRelay, h.MaxRunning, h.Retention > 0}); l != (limits{}) {
			of[h.Type] = l
		}
	}
	text, _ := json.Marshal(map[string]any{"share": plan.Share(workers, len(handlers)), "types": of}) // numbers have JSON
	return string(text)
}

// newCheck returns the check of the database before a run.
func (x *relayRun) newCheck() *check {
	return &check{db: x.db, store: &x.store, environment: x.settings.config.Environment, limits: x.settings.limits,
		once: x.once, waits: x.begun, log: x.log, health: x.health, refusals: x.newRefusals()}
}

// newHeartbeat returns the heartbeat, with the upkeep of the run's parts.
func (x *relayRun) newHeartbeat() *upkeep.Heartbeat {
	config := x.settings.config
	hearing := &hearing{store: &x.store, runner: x.runner, leases: x.leases, interval: upkeep.Interval}
	comparison := &comparison{store: &x.store, leases: x.leases, journal: x.journal,
		unbroken: func() time.Time { return x.heart.Unbroken() }, ready: x.wake, log: x.log}
	expiry := &expiry{store: &x.store, report: x.report, handlers: map[string]*handler.Handler{}, now: x.now,
		from:     store.FirstExpiry,
		unbroken: func() time.Time { return x.heart.Unbroken() }}
	for _, h := range x.settings.handlers {
		expiry.handlers[h.Type] = h
	}
	host, _ := os.Hostname()
	return upkeep.New(upkeep.Params{
		RelayID: x.store.RelayID, Host: host, PID: os.Getpid(), Types: x.settings.types, Workers: config.Workers,
		Schedules:   schedule.Definitions(x.settings.schedules),
		Limits:      limitsOf(config.Workers, x.settings.handlers),
		Parses:      config.ParseSchedule != nil,
		Environment: config.Environment,
		Schema:      x.store.Schema,
		Pool:        x.store.Conns,
		Pace:        x.newPace(),
		Log:         x.log,
		Now:         x.now,
		Jobs: []upkeep.Job{
			{Name: upkeep.CheckRows, Run: rowCheck{schema: config.Schema, log: x.log, found: x.health.rowsHidden}.run},
			{Name: "hear", Run: hearing.run},
			{Name: "compare", Run: comparison.run},
			{Name: "expire", Run: expiry.run},
			{Name: "give tokens back", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				return upkeep.TakeoverInterval, x.rates.giveBack(ctx, on, false)
			}},
			{Name: "store limits", Run: x.storeLimits},
		},
		SharedJobs: x.settings.jobs,
		Lost:       x.leases.Lose,
		Ready:      x.wake,
		Refused:    x.newRefusals().tellOn,
		TookOver:   x.tail.tookOver,
		Looked:     x.tail.looked,
		Identified: x.store.Identity.Set,
		Copied: func(err error) {
			x.health.setCopied(err)
			x.stopClaiming(err)
		},
		Last: func(ctx context.Context, on *pg.Dedicated) { _ = x.rates.giveBack(ctx, on, true) },
	})
}

// storeLimits is the job that stores the limits of types that are missing: after a restore, say.
func (x *relayRun) storeLimits(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
	if len(x.settings.limits) == 0 {
		return upkeep.ReapInterval, nil
	}
	return upkeep.ReapInterval, on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return x.store.StoreLimits(ctx, tx, x.settings.limits, true)
	})
}

func (x *relayRun) newPoller() *poller {
	return &poller{
		Store:   &x.store,
		types:   x.settings.types,
		random:  x.settings.config.Order == OrderRandom,
		running: x.runner.RunningIDs,
		explain: x.newRefusals().explain,
	}
}

func (x *relayRun) newListener() *pg.Listener {
	config := x.settings.config
	return &pg.Listener{DSN: config.ListenDSNFunc, Channel: config.Schema, ID: x.store.RelayID,
		PollInterval: config.PollInterval, Pool: x.store.Conns, Log: x.log,
		Answered: &x.answered, Wake: x.wake, Heard: x.answers.heard,
		Named: x.wakeNamed, Withdrawn: func() { report.Poke(x.withdrawn) }}
}

func (x *relayRun) newDispatcher() *dispatcher {
	config := x.settings.config
	p := plan.Params{Types: laneTypes(x.settings.handlers, x.runner.ClaimSize), Workers: config.Workers,
		Random: config.Order == OrderRandom, PollInterval: config.PollInterval,
		StatementTimeout: pg.StatementTimeout, Once: x.once}
	if config.WorkersByType != nil {
		b := bounds{ctx: x.claiming, ask: config.WorkersByType, types: map[string]bool{}, log: x.log}
		for _, name := range x.settings.types {
			b.types[name] = true
		}
		p.Bound = b.of
	}
	poller := x.newPoller()
	return &dispatcher{
		decisions:    plan.New(p),
		handlers:     x.settings.handlers,
		store:        &x.store,
		due:          x.report.Due,
		runner:       x.runner,
		leases:       x.leases,
		rates:        x.rates,
		unreadable:   make([]unreadable, len(x.settings.handlers)),
		events:       make(chan plan.Event, 2*config.Workers+4),
		alive:        x.heart.Alive,
		listening:    x.listener.Works,
		poll:         poller.poll,
		promote:      poller.promote,
		answered:     &x.answered,
		woken:        x.woken,
		named:        x.named,
		withdrawn:    x.withdrawn,
		ctx:          x.claiming,
		stopClaiming: func() { x.stopClaiming(nil) },
		health:       x.health,
		explain:      x.newRefusals().explain,
		log:          x.log,
	}
}

func (x *relayRun) newScheduler() *schedule.Scheduler {
	return schedule.New(schedule.Params{Schedules: x.settings.schedules,
		Parse: parseStored(x.settings.config.ParseSchedule), Schema: x.store.Schema, Pool: x.store.Conns,
		Pace: x.newPace(), Log: x.log, Refused: x.newRefusals().tell})
}

// newRefusals returns what names the reasons of PostgreSQL's refusals.
func (x *relayRun) newRefusals() refusals {
	return refusals{schema: x.settings.config.Schema, conns: x.store.Conns, health: x.health}
}

// newPace returns what paces another loop.
func (x *relayRun) newPace() pg.Pace { return pg.NewPace(&x.answered, x.wake) }

// wake makes the dispatcher poll.
func (x *relayRun) wake() { report.Poke(x.woken) }

// wakeNamed notes the task that a wake-up names. The latest counts, as the dispatcher takes
// wake-ups together that come fast; polls find the others. Only the listener calls it, so there is
// room.
func (x *relayRun) wakeNamed(task string) {
	select {
	case <-x.named:
	default:
	}
	x.named <- task
}
