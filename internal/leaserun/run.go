package leaserun

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox/internal/call"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/tasklease"
)

// Run is one run of a leased task, from its claim until its lease has ended. Its end queues the
// result without blocking.
type Run struct {
	leases *Leases
	lease  lease
	claim  handler.Claim
	task   store.Task

	watch         *report.Watch
	calledAt      time.Time
	leaveSuspects func()        // a suspect: when it has ended
	postponed     time.Duration // a suspect: as others run
	result        Result

	mu       sync.Mutex
	returned bool // the handler has returned, or was abandoned
	overdue  *time.Timer
}

// begin runs the task.
func (x *Run) begin() {
	l, one := x.leases, &x.lease
	h, t := one.h, one.row
	x.watch = l.Report.Watch(h, []*store.Row{t}, x.claim.Ended)
	if v, buried := decide.Buried(t, store.Fresh); buried {
		x.end(v)
		return
	}
	one.ctx = call.NewContext(l.Handling, x.abandonLater)
	t.Fill(&x.task, l.Store.Identity, t.Begun())
	*tasklease.Of(&x.task) = one
	x.watch.Calling(&x.task)
	var end time.Time
	var cause error
	if timeout := decide.Timeout(h, t); one.noHeartbeat() {
		end, cause = x.claim.Began.Add(timeout), call.ErrRanOut
	} else if timeout > 0 {
		end, cause = time.Now().Add(timeout), call.TimedOut(timeout)
	}
	x.calledAt = time.Now() // before its context can end
	l.hold(one, end, cause)
	// A panic ends the call, and Goexit this goroutine, but nothing else.
	call.Guarded(func() error {
		return h.Run(one.ctx, nil, x.claim, []*store.Task{&x.task})
	}, func(err error) {
		if x.first() {
			x.finish(call.Ended(one.ctx, err, x.calledAt))
		}
	})
}

// first reports whether the caller is the first to end the run.
func (x *Run) first() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.returned {
		return false
	}
	x.returned = true
	if x.overdue != nil {
		x.overdue.Stop()
	}
	return true
}

// abandonLater gives a handler whose context has ended some time to return.
func (x *Run) abandonLater() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.returned {
		x.overdue = time.AfterFunc(call.AbandonAfter, func() {
			if x.first() {
				x.finish(call.Abandoned(x.lease.ctx, x.calledAt))
			}
		})
	}
}

// finish queues the result that the outcome asks for.
func (x *Run) finish(out call.Result) {
	one, log := &x.lease, x.leases.Report.Log
	h, t := one.h, one.row
	x.watch.Called(x.calledAt, out.Took)
	x.leases.drop(one)
	one.ctx.Cancel(nil)
	if out.Abandoned {
		one.leave() // it may be in its Complete, whose transaction has the row
		log.Error("outbox: a handler does not return after its context's end; it was abandoned",
			"task_type", h.Type, "task_id", t.ID)
	}
	if end := one.end.Load(); end != nil {
		if runsAgain(out.Err) {
			log.Error("outbox: RunAgain has no effect after Complete; return it from the function that Complete is given",
				"task_type", h.Type, "task_id", t.ID)
		}
		x.result = x.resultOf(*end)
		x.leases.ended([]*Result{&x.result})
		return
	}
	run := decide.NewRun(log, h, out)
	run.Prevented = one.prevented.Load() || one.unextended.Load()
	if out.Canceled {
		run.Canceled = []int64{t.ID}
	}
	_, verdicts := run.Tasks([]*store.Row{t})
	x.result = x.resultOf(verdicts[0])
	x.result.waits = out.Abandoned || one.completing.Load() > 0 // it may be in its Complete
	x.leases.finish(&x.result)
}

func (x *Run) resultOf(v decide.Verdict) Result {
	one := &x.lease
	return Result{Verdict: v, handler: one.h, end: EndOf(one.h, one.row, one.token, v), run: x}
}

// end queues the result of a run whose handler was not called.
func (x *Run) end(v decide.Verdict) {
	x.result = x.resultOf(v)
	x.leases.finish(&x.result)
}

// ended is called when the result is committed, or will not be.
func (x *Run) ended() {
	x.lease.leave()
	if x.leaveSuspects != nil {
		x.leaveSuspects()
	}
	if x.postponed > 0 {
		x.leases.Report.Due.Postpone(x.postponed)
	}
	x.watch.Set(x.lease.row.ID, x.result.Verdict)
	x.watch.Tell()
}

// Start starts the handlers of what one claim took.
func (l *Leases) Start(runs []*Run) {
	var suspects []*Run
	for _, x := range runs {
		if x.lease.row.LostBy != "" {
			suspects = append(suspects, x)
		}
	}
	if len(suspects) == 0 {
		start(runs)
		return
	}
	go l.startSuspects(suspects)
	start(slices.DeleteFunc(slices.Clone(runs), func(x *Run) bool { return x.lease.row.LostBy != "" }))
}

// startSuspects counts the attempts of tasks whose process died, and starts those that may run
// beside the others of their kind.
func (l *Leases) startSuspects(runs []*Run) {
	var enter []*Run
	var ids []int64
	for _, x := range runs {
		t := x.lease.row
		if t.JudgeLeased() {
			if x.leaveSuspects, x.postponed = l.Suspects.Run(l.Report.Log, t); x.leaveSuspects == nil {
				x.endBefore(decide.Verdict{Outcome: decide.Released, Change: store.Change{Attempt: t.Attempt, Wait: x.postponed}})
				continue
			}
			ids = append(ids, t.ID)
		}
		enter = append(enter, x)
	}
	counted := l.countSuspects(ids, runs[0].lease.token)
	begin := enter[:0]
	for _, x := range enter {
		if t := x.lease.row; x.leaveSuspects != nil && !counted[t.ID] {
			x.endBefore(decide.Verdict{Back: true, Change: store.Change{Attempt: t.Attempt}})
			continue
		}
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
	err := l.Store.Conns.InTx(context.Background(), func(ctx context.Context, tx *sql.Tx) (err error) {
		counted, err = l.Store.BeginSuspects(ctx, tx, ids, token)
		return err
	})
	if err != nil {
		return nil
	}
	return counted
}

// endBefore ends a run whose handler is not called.
func (x *Run) endBefore(v decide.Verdict) {
	l := x.leases
	x.watch = l.Report.Watch(x.lease.h, []*store.Row{x.lease.row}, x.claim.Ended)
	x.end(v)
}

func start(runs []*Run) {
	s := &starts{runs: make(chan *Run, len(runs))}
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
	runs  chan *Run   // closed
	spare atomic.Bool // a goroutine was started that has not taken a run yet
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
