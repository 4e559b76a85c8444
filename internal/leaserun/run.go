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
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/progress"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/taskrun"
)

// Terms are those of a claim of h's tasks.
func Terms(h *handler.Handler, token string) store.LeaseTerms {
	t := store.LeaseTerms{TaskType: h.Type, MaxAttempts: h.MaxAttempts, Token: token}
	if h.Lease > 0 { // without heartbeats the lease is the timeout
		t.Length, t.Share = h.Lease, 1000
		return t
	}
	if h.Timeout > 0 {
		t.Length = leaseFor(h.Timeout)
	}
	t.Margin = leaseFor(0)
	t.Share = (leaseFor(time.Second) - t.Margin).Microseconds() / 1000
	return t
}

// Lease claims up to c.Limit tasks for a Leased handler, or up to allowed, if there are only so
// many slots for its type: when it returns them, they are committed as leased by this relay. found
// is called before the commit when there are some, unless the type has slots.
func (l *Leases) Lease(ctx context.Context, h *handler.Handler, c plan.Claim,
	found func([]*Run)) (runs []*Run, allowed int, err error) {
	for try := 1; ; try++ {
		began := time.Now()
		runs, allowed, err = l.leaseOnce(ctx, h, c, found)
		had := time.Now()
		for _, x := range runs {
			x.claim = handler.Claim{Began: began, Ended: had, Log: l.Report.Log}
		}
		if err == nil && allowed > 0 {
			l.Report.Claimed(h, len(runs), began, had)
		}
		// For all of SKIP LOCKED a claim can wait for another transaction: where one that it found
		// at work on a row ends in that moment, and the row's next version is being changed
		// already. Two can wait for each other then.
		if len(runs) > 0 || !pgerr.Conflict(err) || try == pg.ConflictTries {
			return runs, allowed, err
		}
	}
}

func (l *Leases) leaseOnce(ctx context.Context, h *handler.Handler, c plan.Claim,
	found func([]*Run)) (runs []*Run, allowed int, err error) {
	terms, claimed := Terms(h, store.NewUUID()), store.Claimed{}
	allowed = c.Limit
	ctx = context.WithoutCancel(ctx)
	l.mine.claim(terms.Token)
	if h.MaxRunning > 0 {
		err = l.Store.Conns.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			claimed, allowed = store.Claimed{}, 0
			slots, err := l.Store.LockSlots(ctx, h.Type, tx, c.Limit)
			if err != nil || len(slots) == 0 {
				return err
			}
			allowed = len(slots)
			if claimed, err = l.Store.LeaseWithin(ctx, tx, terms, c.Start, allowed); err != nil {
				return err
			}
			return l.Store.FillSlots(ctx, h.Type, tx, slots, claimed.Rows, terms.Token)
		})
		runs = l.newRuns(h, terms.Token, claimed.Rows)
	} else {
		claimed, err = l.Store.Lease(ctx, terms, c.Start, c.Limit, func(rows []*store.Row) {
			runs = l.newRuns(h, terms.Token, rows)
			found(runs)
		})
	}
	switch {
	case err == nil:
		l.mine.claimed(terms.Token, claimed.Rows)
	case len(runs) > 0: // the commit's outcome may be unknown
		l.release(runs, claimed.XID, terms.Token)
	default:
		l.mine.claimed(terms.Token, nil)
	}
	return runs, allowed, err
}

func (l *Leases) newRuns(h *handler.Handler, token string, rows []*store.Row) []*Run {
	out := make([]*Run, len(rows))
	for i, r := range rows {
		out[i] = &Run{leases: l, lease: lease{store: l.Store, report: l.Report, h: h, token: token, row: r,
			notes: progress.Notes{Board: l.Board, History: h.Retention > 0}}}
	}
	return out
}

// release gives a claim back whose commit may have failed or not, once that is known or the relay
// stops.
func (l *Leases) release(runs []*Run, xid, token string) {
	var back []*store.LeaseEnd
	for _, x := range runs {
		r := x.lease.row
		back = append(back, &store.LeaseEnd{Row: r, Token: token, Back: true,
			Change: store.Change{Attempt: r.Attempt}, LostBy: r.LostBy})
	}
	l.results.writing.Go(func() {
		defer l.mine.claimed(token, nil)
		for !l.giveBack(back, xid) {
			select {
			case <-time.After(time.Second):
			case <-l.stopping:
				l.giveBack(back, xid)
				return
			}
		}
	})
}

// giveBack ends the leases of a claim if it was committed. It reports whether that is known.
func (l *Leases) giveBack(back []*store.LeaseEnd, xid string) bool {
	status, err := l.Store.StatusOf(xid)
	if pgerr.Code(err) == "22023" {
		return true // another server has taken over, which never had it
	}
	if err != nil || status != "committed" {
		return err == nil && status != "in progress"
	}
	if err := l.Store.EndLeases(back); err != nil {
		return false
	}
	for _, e := range back {
		if !e.Held {
			l.logLost(e.Row)
		}
	}
	return true
}

// Found is the leased tasks that a claim found.
func Found(runs []*Run) (out plan.Found) {
	for _, x := range runs {
		r := x.lease.row
		out.Add(plan.Position{Priority: r.Priority, Attempt: r.Attempt, TaskID: r.ID}, r.RunAt, len(r.Payload))
	}
	return out
}

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
	if v, buried := decide.Buried(h, t, store.Fresh); buried {
		x.end(v)
		return
	}
	one.ctx = call.NewContext(l.Handling, x.abandonLater)
	t.Fill(&x.task, l.Store.Identity, t.Begun())
	*taskrun.Of(&x.task) = one
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
	one.notes.End()
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
	return Result{Verdict: v, handler: one.h, run: x,
		end: EndOf(one.h, one.row, one.token, v, one.notes.Result(one.row.ID))}
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
	x.leases.Report.RunEnded(x.lease.row)
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
