package relay

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// Parts are those of a relay that does not run.
type Parts struct {
	Heart    *upkeep.Heartbeat
	Journal  *store.Journal
	Conns    *pg.Pool
	Poll     func(context.Context) error
	Schedule func(context.Context) error
	Take     func(ctx context.Context, n int) (int, error) // tokens of the rate of the first type
	Unused   func(n int)                                   // makes the relay's as many that are too old to be used
}

// Parts returns those with the clock now, and with the one job of maintenance, if any.
func (r *Relay) Parts(now func() time.Time, only string) Parts {
	r.runner, r.born = r.newRunner(context.Background(), context.Background()), time.Now().Add(-time.Hour)
	for _, j := range upkeep.SharedJobs(r.config.DeadRetention) {
		if j.Name == only {
			r.jobs = []upkeep.SharedJob{j}
		}
	}
	r.rates, r.listener = newRates(&r.runner.Store, r.handlers), &pg.Listener{}
	r.heart = r.newHeartbeat(now)
	first := r.handlers[0]
	return Parts{Heart: r.heart, Journal: r.journal, Conns: r.runner.Conns, Schedule: r.newScheduler().Once,
		Poll: func(ctx context.Context) error { _, err := r.newPoller().poll(ctx, pollOptions{}); return err },
		Take: func(ctx context.Context, n int) (int, error) {
			got, _, err := r.rates.take(ctx, first, n)
			return got, err
		},
		Unused: func(n int) {
			r.rates.unused(first, n)
			r.rates[first.Type].taken = time.Time{}
		},
	}
}
