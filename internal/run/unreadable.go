package run

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// Places are where the claim looks for tasks in the lane.
func (c ClaimNext) Places() []plan.Position {
	places := []plan.Position{plan.LaneStart}
	for _, p := range []*plan.Position{c.Pivot, c.Watermark} {
		if p != nil {
			places = append(places, *p)
		}
	}
	return places
}

// Places are where the claim looks for tasks in the lane.
func (n LeaseNext) Places() []plan.Position {
	places := append([]plan.Position{plan.LaneStart}, n.Pivots...)
	if n.Watermark != nil {
		places = append(places, *n.Watermark)
	}
	return places
}

// leastRead is how many tasks at a place are read at least, as other claims have the first ones.
const leastRead = 20

// SetAside puts off the tasks that cannot be read among those that a failed claim of up to limit
// tasks may have met, and returns how many these are.
func (r *Runner) SetAside(h *handler.Handler, limit int, places []plan.Position) (n int) {
	ctx := context.Background()
	limit = max(limit, leastRead)
	for i := range len(places) + 1 {
		var unreadable map[int64]error
		var err error
		if i < len(places) {
			p := places[i]
			unreadable, err = r.Store.SetAside(ctx, h.Type, p.Priority, p.Attempt, p.TaskID, limit)
		} else {
			unreadable, err = r.Store.SetAsideOldest(ctx, h.Type, limit)
		}
		if err != nil {
			r.Log.Warn("outbox: tasks that cannot be read are looked for in vain", "task_type", h.Type, "error", pgerr.LogText(err))
			return n
		}
		for id, err := range unreadable {
			n++
			r.Log.Error("outbox: a task cannot be read and is put off", "task_type", h.Type, "task_id", id, "by", store.SetAsideFor.Round(time.Second), "error", pgerr.LogText(err))
		}
	}
	return n
}
