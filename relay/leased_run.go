package relay

import (
	"context"
	"time"

	"github.com/txoutbox/outbox/handlers"
)

// leasedRun is one run of a leased task, from its claim until its lease has ended. It has one goroutine, the handler's: whoever
// ends the run, the handler's return or the relay's patience, hands the result on and waits for nothing.
type leasedRun struct {
	lease
	lane      *lane
	row       *row
	begun     int
	suspect   *turn
	putOff    time.Duration // a suspect: as another one runs
	unwatched func() bool   // ends the watch over the end of its context

	over     bool // under mu, as unwatched and patience: the handler has returned, or was abandoned
	patience *time.Timer
}

// runLeased runs one leased task.
func (r *Relay) runLeased(c *lane, t *row, token string) {
	h := c.h
	x := &leasedRun{lane: c, row: t, lease: lease{r: r, h: h, id: t.id, token: token, alone: h.Lease > 0}}
	if t.lostBy.Valid && !x.beginSuspect() {
		return
	}
	x.begun = t.attempt
	if x.begun > t.max {
		x.end(transition{change: change{attempt: t.max, reason: reasonAttempts, err: t.lostText(deadAttempts)}})
		return
	}
	x.ctx = newLimited(r.handlerContext)
	call := t.task(x.begun)
	call.Lease = &x.lease
	r.leases.hold(&x.lease)
	x.suspect.begun()
	if timeout := timeoutOf(h, t); x.alone {
		x.ctx.endAt(t.leasedAt.Add(timeout), errRanOut)
	} else if timeout > 0 {
		x.ctx.endAt(time.Now().Add(timeout), timeoutError(timeout))
	}
	x.watch()
	x.call(call)
}

// beginSuspect begins the run of a task that a process died of, and counts it: one such task at a time.
func (x *leasedRun) beginSuspect() bool {
	t := x.row
	if x.suspect = x.r.alone(); x.suspect == nil {
		x.putOff = aside()
		x.end(transition{change: change{attempt: t.attempt, wait: x.putOff}, lostBy: t.lostBy})
		return false
	}
	if err := x.r.leases.begin(t, x.token); err != nil {
		x.end(transition{back: true, change: change{attempt: t.attempt}, lostBy: t.lostBy})
		return false
	}
	t.attempt++
	return true
}

// call calls the handler. A panic or Goexit ends this goroutine, and nothing else.
func (x *leasedRun) call(t *task) {
	_ = widen(int(x.id) & 1) // else the frame is optimized away
	err := errGoexit
	returned := false
	defer func() {
		if !returned {
			if p := recover(); p != nil {
				err = handlers.PanicError(p)
			}
		}
		if x.first() {
			x.finish(outcome{err: err})
		}
	}()
	err = x.h.Run(x.ctx, nil, []*task{t})
	returned = true
}

// widen makes the goroutine's stack as large as most handlers need it, while there is hardly anything to copy: it would grow in the
// depth of the decoding of the payload else, which costs more than all else that a short run needs.
//
//go:noinline
func widen(at int) byte {
	var frame [5 << 10]byte
	return frame[at]
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

func (x *leasedRun) watch() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unwatched = context.AfterFunc(x.ctx.Context, x.overdue)
}

// overdue gives a handler whose context has ended some time to return.
func (x *leasedRun) overdue() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.patience = time.AfterFunc(abandonAfter, func() {
			if x.first() {
				x.finish(outcome{err: errAbandoned, abandoned: true})
			}
		})
	}
}

// finish hands on what the outcome asks for.
func (x *leasedRun) finish(out outcome) {
	r, h, t := x.r, x.h, x.row
	x.unwatched()
	out.because(x.ctx)
	r.leases.drop(&x.lease)
	x.ctx.cancel(nil)
	if out.abandoned {
		if out.drained {
			x.leave()
		}
		r.log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", h.Type, "task_id", t.id)
	}
	if x.completed.Load() {
		if runsAgain(out.err) {
			r.log.Error("outbox: RunAgain has no effect after Complete; return it from the function that Complete is given", "task_type", h.Type, "task_id", t.id)
		}
		x.settled()
		r.leases.ended([]*leasedRun{x})
		return
	}
	next := r.resultOf(h, t, out, x.begun, x.prevented.Load())
	next.apart = out.abandoned // it may be in its Complete
	x.end(next)
}

// end hands on the transition that ends the lease.
func (x *leasedRun) end(next transition) {
	next.row, next.token, next.run = x.row, x.token, x
	x.r.leases.finish(&next)
}

// settled is told that the transition is committed, or will not be.
func (x *leasedRun) settled() {
	x.leave()
	x.suspect.over()
	if x.putOff > 0 {
		x.r.postponed(x.putOff)
	}
}
