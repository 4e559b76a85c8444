package relay

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
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

// WithMaintenance replaces the jobs of r's maintenance by one, which calls run with a transaction.
func (r *Relay) WithMaintenance(name string, run func(ctx context.Context, tx *sql.Tx) (time.Duration, error)) {
	r.settings.jobs = []upkeep.SharedJob{{Name: name, Run: func(ctx context.Context, _ pg.Schema, _ *slog.Logger, tx *sql.Tx) (time.Duration, error) {
		return run(ctx, tx)
	}}}
}

// HealthWithoutHeartbeat is the Health of a relay that runs, and a beat that comes through.
func HealthWithoutHeartbeat() (read func() error, beat func()) {
	var end time.Time
	h := &health{startedAt: time.Now(), ctx: context.Background(), leaseEnd: func() time.Time { return end }}
	return h.err, func() { end = time.Now().Add(upkeep.LeaseDuration) }
}
