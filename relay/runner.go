package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/store"
)

// runner runs the tasks of one run of a relay, from their claim until what became of them is
// recorded.
type runner struct {
	store.Store
	*running
	*observers
	log         *slog.Logger
	journal     *store.Journal
	deadLetters *deadLetters
	newPace     func() pg.Pace

	claiming  context.Context // ends when claiming is to stop
	handling  context.Context // ends when the drain timeout has passed
	abandoned chan struct{}   // closed when nothing is waited for any more
	suspects  sync.Mutex      // held by the one suspect that runs
}

func (r *runner) stopping() bool { return r.claiming.Err() != nil }

var errNoSlot = errors.New("relay: other calls of the type hold all its slots")

// limitsOf are the limits of types that hold in all relays.
func limitsOf(all []*handlers.Handler) (out []store.Limit) {
	for _, h := range all {
		if h.MaxRunningTotal > 0 || h.Rate > 0 {
			out = append(out, store.Limit{TaskType: h.Type, MaxRunning: h.MaxRunningTotal, Rate: h.Rate, RatePer: h.RatePer})
		}
	}
	return out
}

// died tells the log and OnDead of a dead letter whose commit is confirmed.
func (r *runner) died(t *store.Row, c store.Change) {
	d := DeadLetter{TaskID: t.ID, Type: t.TaskType, Attempt: c.Attempt, MaxAttempts: t.Max, Reason: c.Reason, Error: pgerr.Text(c.Err)}
	r.log.Error("outbox: a task became a dead letter", "task_type", d.Type, "task_id", d.TaskID, "attempt", d.Attempt, "reason", c.Reason, "error", d.Error)
	r.deadLetters.tell(d)
}
