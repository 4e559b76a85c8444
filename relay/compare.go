package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// comparison is the job of the heartbeat that compares the runs of this relay in the tables with
// those of its memory. They differ where the database has lost results: after a failover to a
// standby that did not have them, or a restore in place. Nobody else ends these leases, as their
// relay lives.
type comparison struct {
	store    *store.Store
	leases   *leaserun.Leases
	journal  *store.Journal
	unbroken func() time.Time // since when heartbeats come through, in the same database
	ready    func()           // wakes the dispatcher
	log      *slog.Logger

	since time.Time // unbroken, and when it was compared last
	at    time.Time
}

// run compares after each outage and restore, and once in upkeep.ReapInterval.
func (c *comparison) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	since := c.unbroken()
	if since.Equal(c.since) && time.Since(c.at) < upkeep.ReapInterval {
		return upkeep.Interval, nil
	}
	more := false
	err = on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		if more, err = c.compareLeases(ctx, conn); err != nil {
			return err
		}
		forgotten, err := c.journal.ForgetLeftOver(ctx, conn)
		more = more || forgotten == store.MostCompared
		return err
	})
	if err != nil || more {
		return upkeep.TakeoverInterval, err
	}
	c.since, c.at = since, time.Now()
	return upkeep.Interval, nil
}

// compareLeases frees the leases of this relay that it does not run.
func (c *comparison) compareLeases(ctx context.Context, conn pg.Querier) (more bool, err error) {
	rows, err := c.store.OtherLeases(ctx, conn, c.leases.Held())
	if err != nil {
		return false, err
	}
	over := c.leases.LeftOver(rows)
	if len(over) == 0 {
		return false, nil
	}
	more = len(rows) == store.MostCompared
	freed, err := c.store.FreeLeases(ctx, conn, over)
	if err != nil || len(freed) == 0 {
		return more, err
	}
	c.log.Warn("outbox: leased tasks had ended here, and the database has lost their results, "+
		"as by a failover or a restore; they run again", "tasks", len(freed),
		"task_ids", freed[:min(len(freed), mostNamed)])
	c.ready()
	return more, nil
}
