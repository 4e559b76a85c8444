package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/leaserun"
	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/report"
	"github.com/txoutbox/outbox/internal/store"
	"github.com/txoutbox/outbox/internal/txrun"
)

// dispatcher is the loop around plan.Dispatcher, which decides: the loop tells it of events, and carries
// out its actions.
type dispatcher struct {
	decisions    *plan.Dispatcher
	handlers     []*handler.Handler // by lane
	store        *store.Store
	due          *report.Due
	runner       *txrun.Runner    // runs Tx and Batch tasks
	leases       *leaserun.Leases // runs Leased tasks
	rates        rates
	unreadable   []unreadable // by lane
	events       chan plan.Event
	alive        func(now time.Time) error // nil while the relay may claim
	listening    func() bool               // wake-ups come by LISTEN
	poll         func(context.Context, plan.Poll) (plan.PollResult, error)
	promote      func(context.Context, plan.Promote) plan.Promoted
	answered     *pg.Broadcast
	woken        <-chan struct{} // to poll now
	named        <-chan string   // tasks that are ready
	withdrawn    <-chan struct{} // another relay may have withdrawn the wake-up request
	ctx          context.Context // ends when claiming is to stop
	stopClaiming func()
	health       *health
	explain      func(context.Context, error) error // of PostgreSQL's: says what is missing
	log          *slog.Logger
}

// run dispatches until ctx ends or, with RunOnce, nothing is left; then it waits for what runs.
func (d *dispatcher) run() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := d.ctx.Done()
	var e plan.Event = plan.Tick{}
	for {
		wait, done := d.carryOut(d.decisions.Step(e, d.moment()))
		if done != nil {
			return done.Err
		}
		timer.Reset(wait)
		e = plan.Tick{}
		select {
		case e = <-d.events:
		case <-d.woken:
			e = plan.Woken{Named: d.takeNamed()}
		case <-d.withdrawn:
			e = plan.Withdrawn{}
		case <-d.due.Changed:
			e = plan.Scheduled{At: d.due.Take(time.Time{})}
		case <-timer.C:
		case <-stop:
			stop = nil
		}
	}
}

func (d *dispatcher) moment() plan.Moment {
	now := time.Now()
	return plan.Moment{Time: now, NoHeartbeat: failureOf(d.alive(now)), Listening: d.listening(),
		Stopping:  d.ctx.Err() != nil,
		Postponed: d.due.MayBePostponed}
}

func (d *dispatcher) takeNamed() string {
	select {
	case task := <-d.named:
		return task
	default:
		return ""
	}
}

// carryOut carries out actions, and waits for none.
func (d *dispatcher) carryOut(actions []plan.Action) (wait time.Duration, done *plan.Done) {
	for _, a := range actions {
		switch a := a.(type) {
		case plan.Poll:
			go func() {
				result, err := d.poll(d.ctx, a)
				d.events <- plan.Polled{Poll: a, Result: result, Failure: failureOf(d.explain(d.ctx, err))}
			}()
		case plan.Promote:
			go func() { d.events <- d.promote(d.ctx, a) }()
		case plan.StartClaim:
			if d.handlers[a.Lane].Kind == outbox.KindLeased {
				go d.runLeased(a)
			} else {
				go d.runTx(a)
			}
		case plan.Wait:
			wait = a.For
		case plan.Done:
			done = &a
		case plan.StopClaiming:
			d.stopClaiming()
		case plan.ReleaseConns:
			d.store.Conns.ReleaseSoon()
		case plan.DiscardConns:
			d.store.Conns.Discard()
		case plan.TellAnswer:
			d.answered.Send()
		default:
			d.tell(a)
		}
	}
	return wait, done
}

// tell logs, and tells Health.
func (d *dispatcher) tell(a plan.Action) {
	switch a := a.(type) {
	case plan.OutageBegan:
		d.health.outageBegan(a)
	case plan.OutageEnded:
		d.health.outageEnded(a.After, a.At)
	case plan.FewConns:
		d.log.Warn("outbox: the server has no connection left for all workers; fewer work for now", "workers", a.Workers)
	case plan.EnoughConns:
		d.log.Info("outbox: the server has connections for all workers again", "after", a.After.Round(time.Millisecond))
	case plan.LogFailures:
		d.logFailures(a)
	case plan.TellFailures:
		if a.Type == "" {
			d.health.orderingFails(a.Failing)
		} else {
			d.health.typeFails(a.Type, a.Failing)
		}
	}
}

func (d *dispatcher) logFailures(a plan.LogFailures) {
	log, f := d.log.Error, a.Failing
	attrs := []any{"failures", f.Times, "since", f.Since.UTC().Format(time.RFC3339), "error", pgerr.LogText(f.Latest.Err)}
	if a.Work == plan.Heads {
		log("outbox: tasks with ordering keys cannot be promoted", attrs...)
		return
	}
	text := "outbox: scheduled tasks of this type cannot be promoted"
	if a.Work == plan.Claims {
		text = "outbox: tasks of this type cannot be claimed or recorded"
		if !f.Latest.Refused {
			log = d.log.Warn
		}
	}
	log(text, append([]any{"task_type", a.Type}, attrs...)...)
}

// failureOf is the class of an error, or of nil.
func failureOf(err error) plan.Failure {
	if err == nil {
		return plan.Failure{}
	}
	fault := pgerr.Of(err)
	return plan.Failure{
		Err:          err,
		Refused:      pgerr.Refusal(err),
		Answered:     fault == pgerr.Refused || fault == pgerr.Others,
		Passing:      pgerr.Passing(err),
		NoConnection: pgerr.Code(err) == "53300",
		Lasting:      pgerr.Lasting(err),
		Named:        isNamed(err),
		Busy:         errors.Is(err, ErrPoolBusy),
		Divisible:    !pgerr.Conflict(err) && fault != pgerr.Server && fault != pgerr.Foreign,
	}
}

// leasesEnded hears of results of leased tasks that are committed.
func (d *dispatcher) leasesEnded(results []*leaserun.Result) {
	e := plan.LeasesEnded{Keyed: slices.ContainsFunc(results, (*leaserun.Result).Keyed)}
	for _, x := range results {
		lane := d.lane(x.Handler())
		i := slices.IndexFunc(e.Lanes, func(l plan.LaneEnds) bool { return l.Lane == lane })
		if i < 0 {
			i = len(e.Lanes)
			e.Lanes = append(e.Lanes, plan.LaneEnds{Lane: lane})
		}
		e.Lanes[i].Runs++
		if x.Stuck {
			e.Lanes[i].Stuck++
		}
	}
	d.events <- e
}

// resultStuck hears that PostgreSQL refuses the result of a leased task again and again.
func (d *dispatcher) resultStuck(h *handler.Handler, err error, began time.Time, first bool) {
	failure := failureOf(d.explain(d.ctx, err))
	d.events <- plan.ResultStuck{Lane: d.lane(h), Failure: failure, Began: began, First: first}
}

func (d *dispatcher) lane(h *handler.Handler) int { return slices.Index(d.handlers, h) }

// claim has do claim as many tasks as the rate of their type allows, and says how the claim ended.
func (d *dispatcher) claim(a plan.StartClaim, do func(h *handler.Handler, e *plan.ClaimEnded) error) {
	h, e := d.handlers[a.Lane], &plan.ClaimEnded{Lane: a.Lane, Slots: a.Slots, Claim: a.Claim}
	limit, wait, err := d.rates.take(d.ctx, h, a.Claim.Limit)
	e.Claim.Limit = limit
	switch {
	case err != nil:
	case limit == 0:
		e.NotMade, e.Wait = plan.NoToken, min(wait, tokenWait)
	default:
		if err = do(h, e); err != nil && !e.Told && e.NotMade == plan.Made {
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
			e.Told, e.Ran, e.Keyed = true, len(rows) > 0, slices.ContainsFunc(rows, (*store.Row).Keyed)
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
