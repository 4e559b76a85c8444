package run

import (
	"context"
	"database/sql"
	"slices"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// LeasedRun is one run of a leased task, from its claim until its lease has ended. Whoever ends the
// run, the handler's return or the relay's patience, hands the result on and waits for nothing.
type LeasedRun struct {
	lease
	leases *Leases
	claim  handler.Claim
	task   store.Task

	watch         *watch
	calledAt      time.Time
	leaveSuspects func()        // a suspect: when it has ended
	putOff        time.Duration // a suspect: as others run
	next          transition
	mayWait       bool // the transition, for its row: it has a transaction of its own
	Stuck         bool // the transition was, by itself: Leases.Stuck has heard of it

	over     bool // under mu, as patience: the handler has returned, or was abandoned
	patience *time.Timer
}

func (x *LeasedRun) Handler() *handler.Handler { return x.h }

// Ordered reports whether its task has an ordering key.
func (x *LeasedRun) Ordered() bool { return x.row.Ordered() }

// begin runs the task.
func (x *LeasedRun) begin() {
	x.leases.starting.Add(-1)
	r, h, t := x.r, x.h, x.row
	x.watch = newWatch(r.Events, h, []*store.Row{t}, x.claim.Ended)
	if t.Attempt > t.Max {
		x.end(verdict{outcome: Dead, change: store.Change{Attempt: t.Max, Reason: store.ReasonAttempts, Err: t.LostText(store.DeadAttempts)}})
		return
	}
	x.ctx.parent, x.ctx.onEnd = r.Handling, x.overdue
	t.Fill(&x.task, r.Identity, t.Attempt)
	x.task.Lease = &x.lease
	var end time.Time
	var cause error
	if timeout := timeoutOf(h, t); x.noHeartbeat() {
		end, cause = x.claim.Began.Add(timeout), errRanOut
	} else if timeout > 0 {
		end, cause = time.Now().Add(timeout), timedOut(timeout)
	}
	x.calledAt = time.Now() // before anybody else can end it
	x.leases.hold(&x.lease, end, cause)
	x.call()
}

// call calls the handler. A panic ends the call, and Goexit this goroutine, but nothing else.
func (x *LeasedRun) call() {
	guarded(func() error {
		return x.h.Run(&x.ctx, nil, x.claim, []*store.Task{&x.task})
	}, func(err error) {
		if x.first() {
			x.finish(callResult{err: err})
		}
	})
}

// first reports whether the caller is the one to end the run.
func (x *LeasedRun) first() bool {
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
func (x *LeasedRun) overdue() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.patience = time.AfterFunc(AbandonAfter, func() {
			if x.first() {
				x.finish(callResult{err: errAbandoned, abandoned: true})
			}
		})
	}
}

// finish hands on what the outcome asks for.
func (x *LeasedRun) finish(out callResult) {
	r, h, t := x.r, x.h, x.row
	out.took = time.Since(x.calledAt)
	x.watch.called(x.calledAt, out.took, []*store.Task{&x.task})
	out.because(&x.ctx)
	x.leases.drop(&x.lease)
	x.ctx.cancel(nil)
	if out.abandoned {
		x.leave() // it may be in its Complete, whose transaction has the row
		r.Log.Error("outbox: a handler does not return after its context's end; it was abandoned", "task_type", h.Type, "task_id", t.ID)
	}
	if end := x.completed.Load(); end != nil {
		if runsAgain(out.err) {
			r.Log.Error("outbox: RunAgain has no effect after Complete; return it from the function that Complete is given", "task_type", h.Type, "task_id", t.ID)
		}
		x.next.verdict = *end
		x.ended()
		x.leases.Ended([]*LeasedRun{x})
		return
	}
	end := newEnding(r.Log, h, out)
	end.prevented = x.prevented.Load() || x.unextended.Load()
	if out.canceled {
		end.canceled = []int64{t.ID}
	}
	_, verdicts := decide(end, []*store.Row{t})
	x.mayWait = out.abandoned || x.completing.Load() > 0 // it may be in its Complete
	x.end(verdicts[0])
}

// end hands on the transition that ends the lease.
func (x *LeasedRun) end(v verdict) {
	x.next = newTransition(x.h, x.row, x.token, v)
	if v.back || v.outcome == PutOff {
		x.next.end.LostBy = x.row.LostBy
	}
	x.leases.finish(x)
}

// ended is called when the transition is committed, or will not be.
func (x *LeasedRun) ended() {
	x.leave()
	if x.leaveSuspects != nil {
		x.leaveSuspects()
	}
	if x.putOff > 0 {
		x.r.postponed(x.putOff)
	}
	x.watch.set(x.row.ID, x.next.verdict)
	x.watch.tell()
}

// Start starts the handlers of what one claim took.
func (l *Leases) Start(runs []*LeasedRun) {
	l.starting.Add(int64(len(runs)))
	var suspects []*LeasedRun
	for _, x := range runs {
		x.leases, x.r = l, l.r
		if x.row.LostBy != "" {
			suspects = append(suspects, x)
		}
	}
	if len(suspects) == 0 {
		start(runs)
		return
	}
	go l.startSuspects(suspects)
	start(slices.DeleteFunc(slices.Clone(runs), func(x *LeasedRun) bool { return x.row.LostBy != "" }))
}

// startSuspects counts the attempts of tasks whose process died, and starts those that may run
// beside the others of their kind.
func (l *Leases) startSuspects(runs []*LeasedRun) {
	var enter []*LeasedRun
	var ids []int64
	for _, x := range runs {
		t := x.row
		if t.JudgeLeased() {
			if x.leaveSuspects, x.putOff = l.r.enter(t); x.leaveSuspects == nil {
				x.endBefore(verdict{outcome: PutOff, change: store.Change{Attempt: t.Attempt, Wait: x.putOff}})
				continue
			}
			ids = append(ids, t.ID)
		}
		enter = append(enter, x)
	}
	counted := l.countSuspects(ids, runs[0].token)
	begin := enter[:0]
	for _, x := range enter {
		if t := x.row; x.leaveSuspects != nil && !counted[t.ID] {
			x.endBefore(verdict{back: true, change: store.Change{Attempt: t.Attempt}})
			continue
		}
		x.row.Attempt++
		begin = append(begin, x)
	}
	start(begin)
}

// countSuspects counts attempts of a claim, and returns of which tasks: the others' leases are lost.
// After an error it returns none, and they may be counted or not.
func (l *Leases) countSuspects(ids []int64, token string) (counted map[int64]bool) {
	if len(ids) == 0 {
		return nil
	}
	err := l.r.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		counted, err = l.r.BeginSuspects(ctx, tx, ids, token)
		return err
	})
	if err != nil {
		return nil
	}
	return counted
}

// endBefore ends a run whose handler is not called.
func (x *LeasedRun) endBefore(v verdict) {
	x.leases.starting.Add(-1)
	x.watch = newWatch(x.r.Events, x.h, []*store.Row{x.row}, x.claim.Ended)
	x.end(v)
}

func start(runs []*LeasedRun) {
	s := &starts{runs: make(chan *LeasedRun, len(runs))}
	for _, x := range runs {
		s.runs <- x
	}
	close(s.runs)
	s.ensure()
}

// starts are runs of a claim that are about to begin. A goroutine takes one after the other, and
// before it calls a handler it sees to it that there is another goroutine for the rest: so short
// runs need few goroutines, and none waits for a handler that takes its time.
type starts struct {
	runs  chan *LeasedRun // closed
	spare atomic.Bool     // a goroutine was started that has not taken a run yet
}

func (s *starts) ensure() {
	if len(s.runs) > 0 && s.spare.CompareAndSwap(false, true) {
		go s.work()
	}
}

func (s *starts) work() {
	x, more := <-s.runs
	s.spare.Store(false)
	for ; more; x, more = <-s.runs {
		s.ensure()
		x.begin()
	}
}
