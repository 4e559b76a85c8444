package relay

import (
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/store"
)

// leasedRun is one run of a leased task, from its claim until its lease has ended. Whoever ends the
// run, the handler's return or the relay's patience, hands the result on and waits for nothing.
type leasedRun struct {
	lease
	leases  *leases
	row     store.Row
	context limited
	task    store.Task
	begun   int

	claimTook time.Duration // from row.leasedAt
	watch     *watchedRun
	suspect   *soloRun
	putOff    time.Duration // a suspect: as another one runs
	next      transition

	over     bool // under mu, as patience: the handler has returned, or was abandoned
	patience *time.Timer
}

// claimed is told of the claim's type and token before anything else.
func (x *leasedRun) claimed(l *leases, h *handlers.Handler, token string) {
	x.leases, x.lease.r, x.h, x.id, x.token, x.taken, x.noHeartbeat = l, l.r, h, x.row.ID, token, &x.row, h.Lease > 0
}

func (x *leasedRun) handler() *handlers.Handler { return x.h }

func (x *leasedRun) ordered() bool { return x.row.Ordered() }

// begin runs the task.
func (x *leasedRun) begin() {
	r, h, t := x.r, x.h, &x.row
	if t.LostBy.Valid && !x.beginSuspect() {
		return
	}
	x.begun = t.Attempt
	if x.begun > t.Max {
		x.end(transition{outcome: Dead, change: store.Change{Attempt: t.Max, Reason: store.ReasonAttempts, Err: t.LostText(store.DeadAttempts)}})
		return
	}
	x.ctx = &x.context
	x.context.parent, x.context.onEnd, x.context.clock = r.handling, x.overdue, x.leases.clock.at
	t.Fill(&x.task, x.begun)
	x.task.Lease = &x.lease
	var end time.Time
	var cause error
	if timeout := timeoutOf(h, t); x.noHeartbeat {
		end, cause = t.LeasedAt.Add(timeout), errRanOut
	} else if timeout > 0 {
		end, cause = time.Now().Add(timeout), timeoutError(timeout)
	}
	x.watched() // before anybody else can end it
	x.leases.hold(&x.lease, end, cause)
	x.suspect.begun()
	x.call()
}

// beginSuspect begins the run of a task that a process died of, and counts it: one such task at a
// time.
func (x *leasedRun) beginSuspect() bool {
	t := &x.row
	if x.suspect = x.r.soloRun(); x.suspect == nil {
		x.putOff = aside()
		x.end(transition{outcome: PutOff, change: store.Change{Attempt: t.Attempt, Wait: x.putOff}, lostBy: t.LostBy})
		return false
	}
	if err := x.leases.begin(t, x.token); err != nil {
		x.end(transition{back: true, change: store.Change{Attempt: t.Attempt}, lostBy: t.LostBy})
		return false
	}
	t.Attempt++
	return true
}

// call calls the handler. A panic ends the call, and Goexit this goroutine, but nothing else.
func (x *leasedRun) call() {
	guarded(func() error {
		return x.h.Run(x.ctx, nil, handlers.Claim{Began: x.row.LeasedAt, Ended: x.row.LeasedAt.Add(x.claimTook)}, []*store.Task{&x.task})
	}, func(err error) {
		if x.first() {
			x.finish(callResult{err: err})
		}
	})
}

// first reports whether the caller is the one to end the run.
func (x *leasedRun) first() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return false
	}
	x.over = true
	if x.patience != nil {
		x.patience.Stop()
	}
	return true
}

// overdue gives a handler whose context has ended some time to return.
func (x *leasedRun) overdue() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.patience = time.AfterFunc(abandonAfter, func() {
			if x.first() {
				x.finish(callResult{err: errAbandoned, abandoned: true})
			}
		})
	}
}

// finish hands on what the outcome asks for.
func (x *leasedRun) finish(out callResult) {
	r, h, t := x.r, x.h, &x.row
	x.watch.returned()
	out.because(x.ctx)
	x.leases.drop(&x.lease)
	x.ctx.cancel(nil)
	if out.abandoned {
		x.leave() // it may be in its Complete, whose transaction has the row
		r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", h.Type, "task_id", t.ID)
	}
	if end := x.completed.Load(); end != nil {
		if runsAgain(out.err) {
			r.log.Error("outbox: RunAgain has no effect after Complete; return it from the function that Complete is given", "task_type", h.Type, "task_id", t.ID)
		}
		x.next.outcome, x.next.change = end.outcome, end.change
		x.settle()
		x.leases.ended([]settled{x})
		return
	}
	next := resultOf(r.log, h, t, out, x.begun, x.prevented.Load())
	next.mayWait = out.abandoned || x.completing.Load() > 0 // it may be in its Complete
	x.end(next)
}

// end hands on the transition that ends the lease.
func (x *leasedRun) end(next transition) {
	x.next = next
	x.next.row, x.next.token, x.next.run = &x.row, x.token, x
	x.leases.finish(&x.next)
}

// settle is told that the transition is committed, or will not be.
func (x *leasedRun) settle() {
	x.leave()
	x.suspect.over()
	if x.putOff > 0 {
		x.r.postponed(x.putOff)
	}
	x.tellEnd()
}

// watchedRun is what observers are to hear of a run of a leased task; nil, which does nothing, without any.
type watchedRun struct {
	called  time.Time
	handled time.Duration
}

// watched begins to watch the call of the handler.
func (x *leasedRun) watched() {
	if x.r.observed() {
		x.watch = &watchedRun{called: time.Now()}
	}
}

func (w *watchedRun) returned() {
	if w != nil {
		w.handled = time.Since(w.called)
	}
}

// tellEnd tells what became of the task.
func (x *leasedRun) tellEnd() {
	if !x.r.observed() {
		return
	}
	end := RunEnd{Type: x.h.Type, Kind: x.h.Kind}
	one := TaskEnd{TaskID: x.id, Attempt: x.task.Attempt, Outcome: x.next.outcome, Waited: x.r.waited(x.row.RunAt, x.row.LeasedAt.Add(x.claimTook))}
	if x.watch != nil {
		end.Called, end.Handled = x.watch.called, x.watch.handled
	} else {
		one.Attempt = min(x.row.Attempt, x.row.Max)
	}
	if one.Outcome == Dead {
		one.Reason = x.next.change.Reason
	}
	end.Tasks = []TaskEnd{one}
	x.r.tellEnd(end)
}
