package run

import (
	"context"
	"errors"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/store"
)

// RunTx claims with the given claim and runs the handler of a Tx or Batch type. claimed is called
// with what was claimed, unless the claim failed. left are those of a group's tasks that are as
// before. The error is the database's, which is no attempt and a reason to slow down, or ErrNoSlot.
func (r *Runner) RunTx(ctx context.Context, h *handler.Handler, c plan.Claim, claimed func([]*store.Row)) (left []*store.Row, err error) {
	return r.runTx(ctx, h, claimNext(c.Start, c.Limit), claimed)
}

func (r *Runner) runTx(ctx context.Context, h *handler.Handler, c claimPlan, claimed func([]*store.Row)) (left []*store.Row, err error) {
	a := &attempt{unit: unit{guardedTx: guardedTx{Store: &r.Store}, h: h}, r: r, claim: handler.Claim{Began: time.Now(), Log: r.Log}}
	if err := r.runClaim(ctx, a, c, claimed); err != nil {
		return a.left, err
	}
	for _, id := range a.alone {
		if r.Stopping() {
			break
		}
		_, err := r.runTx(ctx, h, claimOne(id), func([]*store.Row) {})
		if errors.Is(err, ErrNoSlot) {
			break // another call has it; whoever claims the rest next finds the runs in the journal
		}
		if err != nil {
			return a.left, err
		}
	}
	return a.left, nil
}

func (r *Runner) runClaim(ctx context.Context, a *attempt, c claimPlan, claimed func([]*store.Row)) error {
	h, err := a.h, a.begin(ctx)
	if err != nil {
		return err
	}
	if h.MaxRunningTotal > 0 {
		slots, err := r.LockSlots(ctx, h.Type, a.tx, 1)
		if err != nil {
			a.abort()
			return err
		}
		if len(slots) == 0 {
			a.giveBack()
			return ErrNoSlot
		}
	}
	if err = a.take(c); err != nil {
		a.abort()
		return err
	}
	a.claim.Ended = time.Now()
	if len(a.rows) == 0 {
		if err := a.giveBack(); err != nil {
			return err
		}
		claimed(nil)
		r.tellClaim(h, 0, a.claim.Began, a.claim.Ended)
		return nil
	}
	a.open = r.started(r.Handling, a.rows)
	defer r.stopped(a.open)
	claimed(a.rows)
	r.tellClaim(h, len(a.rows), a.claim.Began, a.claim.Ended)
	a.watch = newWatch(r.Events, h, a.rows, a.claim.Ended)
	call := a.call
	if len(a.rows) > 1 && h.GroupSize > 1 {
		call = (&group{attempt: a}).callAll
	}
	err = a.run(ctx, call)
	a.watch.tell()
	return err
}
