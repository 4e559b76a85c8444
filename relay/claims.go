package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
)

// claim has do claim as many tasks as the rate of their type allows, and says how the claim ended.
func (d *dispatcher) claim(a plan.StartClaim, do func(h *handler.Handler, e *plan.ClaimEnded) error) {
	h, e := d.handlers[a.Lane], plan.ClaimEnded{Lane: a.Lane, Slots: a.Slots, Claim: a.Claim}
	limit, wait, err := d.rates.take(d.ctx, h, a.Claim.Limit)
	e.Claim.Limit = limit
	switch {
	case err != nil:
	case limit == 0:
		e.NotMade, e.Wait = plan.NoToken, min(wait, tokenWait)
	default:
		if err = do(h, &e); err != nil && !e.Told && e.NotMade == plan.Made {
			e.NotMade = d.setAside(a.Lane, e.Claim, err)
		}
	}
	e.Failure, e.ClaimSize = failureOf(d.explain(d.ctx, err)), d.runner.ClaimSize(h)
	d.events <- e
}

// runTx claims and runs Tx or Batch tasks.
func (d *dispatcher) runTx(a plan.StartClaim) {
	d.claim(a, func(h *handler.Handler, e *plan.ClaimEnded) error {
		unused := e.Claim.Limit
		returned, err := d.runner.Run(d.ctx, h, e.Claim, func(rows []*store.Row) {
			e.Told, e.Ran, e.Ordered = true, len(rows) > 0, slices.ContainsFunc(rows, (*store.Row).Ordered)
			d.rates.unused(h, e.Claim.Limit-len(rows)) // while the others run
			unused = 0
			d.events <- plan.ClaimFound{Lane: e.Lane, Claim: e.Claim, Found: txrun.Found(rows)}
		})
		d.rates.unused(h, unused+len(returned))
		if errors.Is(err, txrun.ErrNoSlot) && !e.Told {
			e.NotMade = plan.NoSlot
		}
		for _, r := range returned {
			e.Returned = append(e.Returned, plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID})
		}
		return err
	})
}

// runLeased claims leased tasks and starts their handlers. The next claim of the lane need not wait
// for the commit of this one.
func (d *dispatcher) runLeased(a plan.StartClaim) {
	var runs []*leaserun.Run
	d.claim(a, func(h *handler.Handler, e *plan.ClaimEnded) (err error) {
		runs, e.Allowed, err = d.leases.Lease(d.ctx, h, e.Claim, func(found []*leaserun.Run) {
			e.Told = true
			d.events <- plan.ClaimFound{Lane: e.Lane, Claim: e.Claim, Found: leaserun.Found(found)}
		})
		switch {
		case err != nil:
			runs = nil
		case e.Allowed == 0:
			e.NotMade = plan.NoSlot
		}
		d.rates.unused(h, e.Claim.Limit-len(runs))
		e.Found = leaserun.Found(runs)
		return err
	})
	if len(runs) > 0 { // else the dispatcher may have ended by now, and its relay may run again
		d.leases.Start(runs)
	}
}

// setAside sets aside the tasks that cannot be read, among those that a failed claim met. It is Made if
// there are none: the claim failed for another reason.
func (d *dispatcher) setAside(lane int, claim plan.Claim, err error) plan.NotMade {
	h := d.handlers[lane]
	if !claim.Named && pgerr.Refusal(err) &&
		d.unreadable[lane].setAside(claim.Began, func() int { return d.putAside(h, claim) }) {
		return plan.SetAside
	}
	return plan.Made
}

// leastRead is how many tasks at a place are read at least, as other claims have the first ones.
const leastRead = 20

// putAside postpones the tasks that cannot be read among those that a failed claim may have met, and
// returns their number.
func (d *dispatcher) putAside(h *handler.Handler, claim plan.Claim) (n int) {
	for _, p := range claim.Start.Places() {
		unreadable, err := d.store.SetAside(context.Background(), h.Type, p, max(claim.Limit, leastRead))
		if pgerr.Refusal(err) { // of all tasks, as the claim says
			return n
		}
		if err != nil {
			d.log.Warn("outbox: tasks that cannot be read are looked for in vain", "task_type", h.Type,
				"error", pgerr.LogText(err))
			return n
		}
		for id, err := range unreadable {
			n++
			d.log.Error("outbox: a task cannot be read and is put off", "task_type", h.Type, "task_id", id,
				"by", store.SetAsideFor.Round(time.Second), "error", pgerr.LogText(err))
		}
	}
	return n
}

// unreadable has the time when tasks of a lane that cannot be read were last set aside. Several claims
// may fail together; one at a time looks for such tasks.
type unreadable struct {
	mu sync.Mutex
	at time.Time
}

// setAside sets aside the tasks that prevented a claim, which began at the given time. It reports
// whether there were any: then the others can be claimed.
func (u *unreadable) setAside(began time.Time, find func() int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at.After(began) { // another claim had met them too
		return true
	}
	if find() == 0 {
		return false
	}
	u.at = time.Now()
	return true
}

// laneTypes are the types of handlers, as the dispatcher knows them.
func laneTypes(handlers []*handler.Handler, claimSize func(*handler.Handler) int) []plan.Type {
	var out []plan.Type
	for _, h := range handlers {
		out = append(out, plan.Type{Name: h.Type, Kind: string(h.Kind), Priority: h.Priority,
			MaxRunningPerRelay: h.MaxRunningPerRelay, MaxRunning: h.MaxRunning, Rated: h.Rate > 0,
			ClaimSize: claimSize(h)})
	}
	return out
}
