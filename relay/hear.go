package relay

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
)

// hearing is the job of the heartbeat that reads, at each interval, what became of running tasks
// elsewhere.
type hearing struct {
	store    *store.Store
	runner   *txrun.Runner
	leases   *leaserun.Leases
	interval time.Duration
	ranAt    time.Time // when a task was seen to run
	heardAt  time.Time // when it was read what became of running tasks
}

// idle is how long a relay that runs nothing does not hear: then there are only requests that
// outlived a run elsewhere.
func (h *hearing) idle() time.Duration { return 10*h.interval - time.Second }

// run ends the contexts of handlers whose task was canceled or whose lease was taken, and removes
// canceled tasks that wait. It only reads, unless a task is canceled.
func (h *hearing) run(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	open, held := []int64{}, h.leases.Held()
	for _, taskIDs := range h.runner.Underway() {
		open = append(open, taskIDs...)
	}
	if len(open)+len(held) > 0 {
		h.ranAt = time.Now()
	} else if time.Since(h.ranAt) > h.idle() && time.Since(h.heardAt) < h.idle() {
		return h.interval, nil
	}
	return h.interval, on.Do(ctx, func(ctx context.Context, conn pg.Querier) error {
		heard, err := h.store.Hear(ctx, conn, open, held)
		if err != nil {
			return err
		}
		h.runner.Cancel(heard.Canceled)
		h.leases.Cancel(heard.Canceled, heard.Lost)
		if len(heard.Asked) > 0 {
			if _, err := h.store.RemoveCanceled(ctx, conn, heard.Asked); err != nil {
				return err // it is heard again soon
			}
		}
		h.heardAt = time.Now()
		return nil
	})
}
