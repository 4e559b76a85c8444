package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/run"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// A run of a relay has these parts. Each gets what it needs; none knows the Relay.

// newRunner returns what runs tasks, and makes the leases of that run.
func (r *Relay) newRunner(claiming, handling context.Context) *run.Runner {
	r.observers = &observers{all: r.config.Observers, dead: newDeadLetters(claiming, r.config.OnDead, r.log), log: r.log, types: r.types}
	s := store.Store{Schema: pg.Schema(r.config.Schema), RelayID: store.NewUUID(), Conns: pg.NewPool(r.db), Identity: &store.Identity{}}
	r.journal = store.NewJournal(&s, r.newPace(), r.config.Workers)
	runner := run.NewRunner(s, run.Params{Log: r.log, Events: r.observers, Journal: r.journal, NewPace: r.newPace, Claiming: claiming, Handling: handling})
	r.leases = run.NewLeases(runner)
	return runner
}

// newCheck returns the check of the database before a run.
func (r *Relay) newCheck(once bool) *check {
	return &check{db: r.db, store: &r.runner.Store, environment: r.config.Environment, limits: limitsOf(r.handlers), once: once, log: r.log,
		outage: pg.NewOutage(r.log, r.outageChanged), copied: r.copied}
}

// newHeartbeat returns the heartbeat of a run, with the upkeep of the relay's parts.
func (r *Relay) newHeartbeat(now func() time.Time) *upkeep.Heartbeat {
	hearing, limits := run.NewHearing(r.runner, r.leases, upkeep.Interval), &r.runner.Store
	return upkeep.New(upkeep.Params{
		RelayID: r.runner.RelayID, Host: r.host, PID: r.pid, Types: r.types, Workers: r.config.Workers,
		Schedules:   schedule.Definitions(r.schedules),
		Environment: r.config.Environment,
		Schema:      r.runner.Schema,
		Pool:        r.runner.Conns,
		Pace:        r.newPace(),
		Log:         r.log,
		Now:         now,
		Jobs: []upkeep.Job{
			{Name: upkeep.CheckRows, Run: rowCheck{schema: r.config.Schema, log: r.log, found: r.rowsHidden}.run},
			{Name: "hear", Run: hearing.Hear},
			{Name: "give tokens back", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				return upkeep.TakeoverInterval, r.rates.giveBack(ctx, on, false)
			}},
			{Name: "store limits", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				of := limitsOf(r.handlers)
				if len(of) == 0 {
					return upkeep.ReapInterval, nil
				}
				return upkeep.ReapInterval, on.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
					return limits.StoreLimits(ctx, tx, of, true)
				})
			}},
		},
		SharedJobs: r.jobs,
		Lost:       r.leases.Lose,
		Ready:      r.Wake,
		Identified: r.runner.Identity.Set,
		Last:       func(ctx context.Context, on *pg.Dedicated) { _ = r.rates.giveBack(ctx, on, true) },
	})
}

func (r *Relay) newPoller() *poller {
	return &poller{
		Store:   &r.runner.Store,
		types:   r.types,
		random:  r.config.Order == Random,
		running: r.runner.RunningIDs,
	}
}

func (r *Relay) newDispatcher(ctx context.Context, once bool) *dispatcher {
	d := &dispatcher{
		r:         r.runner,
		leases:    r.leases,
		config:    r.config,
		rates:     r.rates,
		alive:     r.heart.Alive,
		notified:  r.listener.Works,
		pollLanes: r.newPoller().poll,
		answered:  &r.answered,
		woken:     r.woken,
		named:     r.named,
		withdrawn: r.withdrawn,
		ctx:       ctx,
		once:      once,
		free:      r.config.Workers,
		events:    make(chan func(), 2*r.config.Workers+4),
		outage:    pg.NewOutage(r.log, r.outageChanged),
		typeFails: r.typeFails,
		headsFail: r.orderingFails,
	}
	d.lanes.workers = r.config.Workers
	if r.config.Chooser != nil {
		d.lanes.chooser = &appChooser{chooser: r.config.Chooser, log: r.log}
	}
	for _, h := range r.handlers {
		d.lanes.all = append(d.lanes.all, &lane{h: h, claimSize: max(h.BatchSize, h.GroupSize), watermarks: plan.Watermarks{Random: r.config.Order == Random}})
	}
	return d
}

// newScheduler returns the scheduler of a run.
func (r *Relay) newScheduler() *schedule.Scheduler {
	return schedule.New(schedule.Params{Schedules: r.schedules, Schema: r.runner.Schema, Pool: r.runner.Conns, Pace: r.newPace(), Log: r.log})
}

// newPace paces a loop that is not the dispatcher.
func (r *Relay) newPace() pg.Pace { return pg.NewPace(&r.answered, r.Wake) }

// limitsOf are the limits of types that hold in all relays.
func limitsOf(all []*handler.Handler) (out []store.Limit) {
	for _, h := range all {
		if h.MaxRunningTotal > 0 || h.Rate > 0 {
			out = append(out, store.Limit{TaskType: h.Type, MaxRunning: h.MaxRunningTotal, Rate: h.Rate, RatePer: h.RatePer})
		}
	}
	return out
}
