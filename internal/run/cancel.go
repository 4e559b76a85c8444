package run

import (
	"context"
	"database/sql"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/store"
)

// hearing is a job of the heartbeat's, done at each interval.
type hearing struct {
	r        *Runner
	leases   *Leases
	interval time.Duration
	ranAt    time.Time // when a task was seen to run
	heardAt  time.Time // when it was read what became of running tasks
}

// NewHearing returns a hearing for the parts of one relay.
func NewHearing(r *Runner, l *Leases, interval time.Duration) *hearing {
	return &hearing{r: r, leases: l, interval: interval}
}

// idle is how long a relay that runs nothing does not hear: what is left to it are requests that
// outlived a run elsewhere.
func (h *hearing) idle() time.Duration { return 10*h.interval - time.Second }

// Hear ends the contexts of handlers whose task was canceled or whose lease was taken, and removes
// canceled tasks that wait. It reads only, unless somebody cancels.
func (h *hearing) Hear(ctx context.Context, on *pg.Dedicated) (next time.Duration, err error) {
	r := h.r
	running, held := r.openClaims(), h.leases.held()
	taskIDs, leases := []int64{}, []store.Lease{}
	for id := range running {
		taskIDs = append(taskIDs, id)
	}
	for _, l := range held {
		leases = append(leases, l.id())
	}
	if len(running)+len(held) > 0 {
		h.ranAt = time.Now()
	} else if time.Since(h.ranAt) > h.idle() && time.Since(h.heardAt) < h.idle() {
		return h.interval, nil
	}
	return h.interval, on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		heard, err := r.Store.Hear(ctx, conn, taskIDs, leases)
		if err != nil {
			return err
		}
		for id := range heard.Canceled {
			if c := running[id]; c != nil {
				c.cancelTask(id)
			}
		}
		for _, l := range held {
			if heard.Lost[l.id()] {
				h.leases.took(l)
			}
			if heard.Canceled[l.row.ID] {
				l.ctx.cancel(outbox.ErrCanceled)
			}
		}
		if len(heard.Asked) > 0 {
			if _, err := r.RemoveCanceled(ctx, conn, heard.Asked); err != nil {
				return err // it is heard again soon
			}
		}
		h.heardAt = time.Now()
		return nil
	})
}
