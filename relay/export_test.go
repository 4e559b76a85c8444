package relay

import (
	"context"
	"time"

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

// HealthWithoutHeartbeat is the Health of a relay that runs, and a beat that comes through.
func HealthWithoutHeartbeat() (read func() error, beat func()) {
	var end time.Time
	h := &health{startedAt: time.Now(), ctx: context.Background(), leaseEnd: func() time.Time { return end }}
	return h.err, func() { end = time.Now().Add(upkeep.LeaseDuration) }
}
