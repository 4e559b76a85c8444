package relay

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// SpanArgs are arguments of a poll: of the first type only what follows a task of the ordinary
// priority, and the other priorities.
func SpanArgs(taskID int) []any {
	var starts plan.Starts
	var found plan.Found
	for range 100 {
		found.Add(plan.Position{TaskID: int64(taskID)}, 0, 0)
	}
	starts.Took(plan.Claim{}, found, time.Now())
	return spanArgs([][]plan.Span{starts.Spans()})
}

// HealthWithoutHeartbeat is the Health of a relay that runs, and a beat that comes through.
func HealthWithoutHeartbeat() (read func() error, beat func()) {
	var end time.Time
	h := &health{startedAt: time.Now(), ctx: context.Background(), leaseEnd: func() time.Time { return end }}
	return h.err, func() { end = time.Now().Add(upkeep.LeaseDuration) }
}

// Parts are those of a relay that does not run.
type Parts struct {
	Heart    *upkeep.Heartbeat
	Journal  *store.Journal
	Conns    *pg.Pool
	Poll     func(context.Context) error
	Schedule func(context.Context) error
}

// Parts returns those with the clock now, and with the one job of maintenance, if any.
func (r *Relay) Parts(now func() time.Time, only string) Parts {
	for _, j := range upkeep.SharedJobs(r.settings.config.DeadRetention) {
		if j.Name == only {
			r.settings.jobs = []upkeep.SharedJob{j}
		}
	}
	x := newRun(context.Background(), r.params(false, func() {}, now))
	return Parts{Heart: x.heart, Journal: x.journal, Conns: x.store.Conns, Schedule: x.scheduler.Once,
		Poll: func(ctx context.Context) error {
			p := x.newPoller()
			result, err := p.poll(ctx, plan.Poll{})
			if err == nil {
				err = p.promote(ctx, plan.Promote{Types: result.DueTypes, Request: result.Request, Limit: 1000}).Failure.Err
			}
			return err
		},
	}
}
