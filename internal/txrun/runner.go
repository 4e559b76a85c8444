package txrun

import (
	"context"
	"errors"
	"time"

	"github.com/txoutbox/outbox/internal/apptx"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// Runner claims and runs the Tx and Batch tasks of one run of a relay.
type Runner struct {
	p      *Params
	open   *openClaims
	groups *groupSizes
}

// New returns a Runner.
func New(p Params) *Runner { return &Runner{p: &p, open: newOpenClaims(), groups: &groupSizes{}} }

// Underway are the tasks of open claims, by type. Of a batch or a group all count.
func (r *Runner) Underway() map[string][]int64 { return r.open.underway() }

// RunningIDs are the tasks of open claims; some of them, if they are very many.
func (r *Runner) RunningIDs() []int64 { return r.open.runningIDs() }

// Cancel ends the contexts of the handlers of canceled tasks.
func (r *Runner) Cancel(canceled map[int64]bool) { r.open.cancel(canceled) }

// ErrNoSlot is the error of a claim of a type whose slots are all in use.
var ErrNoSlot = errors.New("relay: other calls of the type hold all its slots")

// ClaimSize is how many of h's tasks one claim takes at most.
func (r *Runner) ClaimSize(h *handler.Handler) int { return r.groups.of(h) }

// Run claims and runs the handler of a Tx or Batch type. claimed is called with the claimed tasks,
// unless the claim failed. left are those of a group's tasks that are as before. The error is the
// database's, which is no attempt and a reason to slow down, or ErrNoSlot.
func (r *Runner) Run(ctx context.Context, h *handler.Handler, c plan.Claim,
	claimed func([]*store.Row)) (left []*store.Row, err error) {
	a, err := r.claim(ctx, h, Next(c.Start, c.Limit), claimed)
	if a == nil {
		return nil, err
	}
	if err != nil {
		return a.left, err
	}
	for _, id := range a.alone {
		if r.p.stopping() {
			break
		}
		_, err := r.claim(ctx, h, One(id), func([]*store.Row) {})
		if errors.Is(err, ErrNoSlot) {
			break // another call has it; the next claim of the rest finds the runs in the journal
		}
		if err != nil {
			return a.left, err
		}
	}
	return a.left, nil
}

// claim claims and runs the handler. The attempt is nil if nothing was claimed.
func (r *Runner) claim(ctx context.Context, h *handler.Handler, c Claim, claimed func([]*store.Row)) (*attempt, error) {
	began := time.Now()
	tx, err := apptx.Begin(ctx, r.p.Store)
	if err != nil {
		return nil, err
	}
	if h.MaxRunningTotal > 0 {
		slots, err := r.p.Store.LockSlots(ctx, h.Type, tx.SQL(), 1)
		if err != nil {
			tx.Abort()
			return nil, err
		}
		if len(slots) == 0 {
			_ = tx.RollBack()
			return nil, ErrNoSlot
		}
	}
	u, err := Take(r.p.Store, tx, h, c)
	if err != nil {
		tx.Abort()
		return nil, err
	}
	had := time.Now()
	if len(u.Rows) == 0 {
		if err := tx.RollBack(); err != nil {
			return nil, err
		}
		claimed(nil)
		r.p.Report.Claimed(h, 0, began, had)
		return nil, nil
	}
	open := r.open.add(r.p.Handling, u.Rows)
	defer r.open.remove(open)
	claimed(u.Rows)
	r.p.Report.Claimed(h, len(u.Rows), began, had)
	a := &attempt{p: r.p, groups: r.groups, unit: u, open: open, claim: handler.Claim{Began: began, Ended: had, Log: r.p.Report.Log},
		watch: r.p.Report.Watch(h, u.Rows, had)}
	err = a.run(ctx)
	a.watch.Tell()
	return a, err
}
