package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/schedule"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// A run of a relay has these parts. Each gets what it needs; none knows the Relay.

// newRunner returns what runs tasks, and makes the leases of that run.
func (r *Relay) newRunner(claiming, handling context.Context) *runner {
	run := &runner{
		Store:   store.Store{Schema: pg.Schema(r.config.Schema), RelayID: store.NewUUID(), Conns: pg.NewPool(r.db)},
		running: newRunning(),
		log:     r.log, newPace: r.newPace,
		claiming: claiming, handling: handling, abandoned: make(chan struct{}),
	}
	run.observers = &observers{all: r.config.Observers, log: r.log, types: r.types}
	run.journal = store.NewJournal(&run.Store, r.newPace(), r.config.Workers)
	run.deadLetters = newDeadLetters(claiming, r.config.OnDead, r.log)
	r.leases = newLeases(run)
	return run
}

// newHeartbeat returns the heartbeat of a run, with the upkeep of the relay's parts.
func (r *Relay) newHeartbeat(now func() time.Time) *upkeep.Heartbeat {
	hearing, limits := &hearing{r: r.runner, leases: r.leases}, &r.Store
	return upkeep.New(upkeep.Params{
		RelayID: r.RelayID, Host: r.host, PID: r.pid, Types: r.types, Workers: r.config.Workers,
		MaxConns:   func() int { return r.db.Stats().MaxOpenConnections },
		Schema:     r.Schema,
		Pool:       r.Conns,
		Pace:       r.newPace(),
		Log:        r.log,
		Now:        now,
		ReadsClock: r.observed(),
		Jobs: []upkeep.Job{
			{Name: "hear", Run: hearing.hear},
			{Name: "give tokens back", Run: r.rates.giveBackSome},
			{Name: "store limits", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				return upkeep.ReapInterval, on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
					return limits.StoreLimits(ctx, conn, limitsOf(r.handlers), true)
				})
			}},
		},
		Maintenance: r.jobs,
		Lost:        r.leases.lose,
		Ready:       r.wake,
		Last:        r.rates.giveBackAll,
	})
}

func (r *Relay) newPoller() *poller {
	return &poller{
		Store:   &r.Store,
		types:   r.types,
		random:  r.config.Order == Random,
		ahead:   2*r.config.PollInterval + 100*time.Millisecond,
		running: r.runningIDs,
		leases:  r.heart,
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
		withdrawn: r.withdrawn,
		ctx:       ctx,
		once:      once,
		free:      r.config.Workers,
		events:    make(chan func(), 2*r.config.Workers+4),
		outage:    pg.NewOutage(r.log, r.outageChanged),
	}
	d.lanes.workers = r.config.Workers
	if r.config.Chooser != nil {
		d.lanes.chooser = &appChooser{chooser: r.config.Chooser, log: r.log}
	}
	for _, h := range r.handlers {
		d.lanes.all = append(d.lanes.all, &lane{h: h, watermarks: plan.Watermarks{Random: r.config.Order == Random}})
	}
	return d
}

// newScheduler returns the scheduler of a run.
func (r *Relay) newScheduler() *schedule.Scheduler {
	return schedule.New(schedule.Params{Schedules: r.schedules, Schema: r.Schema, Pool: r.Conns, Pace: r.newPace(), Log: r.log})
}

// newPace paces a loop that is not the dispatcher.
func (r *Relay) newPace() pg.Pace { return pg.NewPace(&r.answered, r.wake) }
