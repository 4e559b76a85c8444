package run

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// leastRead is how many tasks at a place are read at least, as other claims have the first ones.
const leastRead = 20

// SetAside puts off the tasks that cannot be read among those that a failed claim of up to limit
// tasks may have met, and returns how many these are.
func (r *Runner) SetAside(h *handler.Handler, limit int, from plan.Start) (n int) {
	for _, p := range from.Places() {
		unreadable, err := r.Store.SetAside(context.Background(), h.Type, p, max(limit, leastRead))
		if pgerr.Refusal(err) { // of all tasks, as the claim says
			return n
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
