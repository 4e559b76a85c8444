package relay

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// newHeartbeat returns the heartbeat of a run, with the upkeep of the relay's parts.
func (r *Relay) newHeartbeat(now func() time.Time) *upkeep.Heartbeat {
	hearing, limits := &hearing{r: r.runner}, &r.store
	return upkeep.New(upkeep.Params{
		RelayID: r.relayID, Host: r.host, PID: r.pid, Types: r.types, Workers: r.config.Workers,
		MaxConns:   func() int { return r.db.Stats().MaxOpenConnections },
		Schema:     r.schema,
		Pool:       r.conns,
		Pace:       r.newPace(),
		Log:        r.log,
		Now:        now,
		ReadsClock: r.observed(),
		Jobs: []upkeep.Job{
			{Name: "hear", Run: hearing.hear},
			{Name: "give tokens back", Run: r.rates.giveBackSome},
			{Name: "store limits", Run: func(ctx context.Context, on *pg.Dedicated) (time.Duration, error) {
				return upkeep.ReapInterval, on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
					return limits.storeLimits(ctx, conn, r.handlers, true)
				})
			}},
		},
		Maintenance: r.jobs,
		Lost:        r.leases.lose,
		Ready:       r.wake,
		Last:        r.rates.giveBackAll,
	})
}
