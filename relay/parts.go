package relay

import (
	"context"
	"database/sql"
	"os"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// A run of a relay has these parts. Each gets what it needs; none knows the Relay.

func (x *relayRun) newObservers() *observers {
	config := x.settings.config
	dead := newDeadLetters(x.claiming, config.OnDead, x.log)
	return &observers{ctx: context.WithoutCancel(x.ctx), all: config.Observers, dead: dead, log: x.log,
		types: x.settings.types, ahead: func() time.Duration { return x.heart.Ahead() }}
}

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
	return txrun.New(txrun.Params{Store: &x.store, Report: x.report, Journal: x.journal, Suspects: x.suspects,
		Claiming: x.claiming, Handling: x.handling})
}

// newLeases returns the part that runs Leased tasks.
func (x *relayRun) newLeases() *leaserun.Leases {
	return leaserun.New(leaserun.Params{Store: &x.store, Report: x.report, Suspects: x.suspects,
		NewPace: x.newPace, Handling: x.handling,
		Ended: func(results []*leaserun.Result) { x.dispatcher.leasesEnded(results) },
		Stuck: func(h *handler.Handler, err error, began time.Time, first bool) {
			x.dispatcher.resultStuck(h, err, began, first)
		}})
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
	host, _ := os.Hostname()
	return upkeep.New(upkeep.Params{
		RelayID: x.store.RelayID, Host: host, PID: os.Getpid(), Types: x.settings.types, Workers: config.Workers,
		Schedules:   schedule.Definitions(x.settings.schedules),
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
			{Name: "give tokens back", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				return upkeep.TakeoverInterval, x.rates.giveBack(ctx, on, false)
			}},
			{Name: "store limits", Run: x.storeLimits},
		},
		SharedJobs: x.settings.jobs,
		Lost:       x.leases.Lose,
		Ready:      x.wake,
		Refused:    x.newRefusals().tellOn,
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
		Answered: &x.answered, Wake: x.wake, Named: x.wakeNamed, Withdrawn: func() { report.Poke(x.withdrawn) }}
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
	return schedule.New(schedule.Params{Schedules: x.settings.schedules, Schema: x.store.Schema, Pool: x.store.Conns,
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
