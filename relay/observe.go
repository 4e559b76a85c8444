package relay

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/guard"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/report"
)

// Observer hears what a relay does, for metrics: see the modules telemetry/prom and telemetry/otel. A
// function that is nil is not called, and without any observer nothing is measured.
//
// The goroutines that do the work wait for the functions, outside of locks and transactions but for
// Claimed, which comes while the claim of a Tx or Batch handler is open. So they must return soon,
// without I/O, as what they take is lost to the relay; they may be called at the same time, also by
// several relays. A panic in one is logged and hurts nobody. Their ctx has the values of the
// context of Run, Start or RunOnce, and does not end.
type Observer struct {
	// Claimed hears of each claim that succeeded. Changed hears of a failed claim, if it began an
	// outage or a refusal.
	Claimed func(ctx context.Context, c Claim)

	// Ended hears of the end of each run, once it is known what became of its tasks: after the
	// commit. Each task of a Claim is told once by an Ended, unless its process dies. Tasks that expired
	// where no claim came to them are told by an Ended, too.
	Ended func(ctx context.Context, e RunEnd)

	// Changed hears when the relay starts and stops, and when an outage or a refusal begins and
	// ends. Each EventStarted has one EventStopped, each EventOutageBegan one EventOutageEnded, and
	// each EventRefusalBegan one EventRefusalEnded, before EventStopped at the latest.
	Changed func(ctx context.Context, c Change)
}

// Claim is one claim of tasks of one type.
type Claim struct {
	Type  string
	Kind  outbox.Kind
	Tasks int // that it took; 0 if others were faster
	// Start is when the relay began the claim, by the process's clock, and Duration how long it
	// took from then: to get a connection, and for Leased tasks to commit.
	Start    time.Time
	Duration time.Duration
}

// RunEnd is the end of one run: of one task, or of the tasks of one claim of a Batch handler. Each
// task of a group of handlers.GroupCommit has its own, once the group has committed.
type RunEnd struct {
	Type string
	Kind outbox.Kind // "" of expired tasks of a type without a handler here
	// Start is when the handler was called, by the process's clock; zero if it was not. Duration is
	// how long its call took; of one that did not return, until it was abandoned.
	Start    time.Time
	Duration time.Duration
	Tasks    []TaskEnd
}

// TaskEnd is what became of one task in a run.
type TaskEnd struct {
	ID      int64
	Attempt int // as its handler saw it, or was to
	Outcome Outcome
	Reason  outbox.Reason // of OutcomeDead
	// Err is the handler's error, for errors.Is and errors.As, or the relay's; nil if the task is
	// done. A handler that panicked has a handlers.PanicError.
	Err error
	// Waited is how long the task had been due when the claim had it, by PostgreSQL's clock, which
	// the relay knows from its heartbeat, to within that one's round trip. It counts from RunAt:
	// for a task without one from the start of the transaction that enqueued it.
	Waited time.Duration
}

// Outcome is what became of a task in a run. Its text is the label in metrics.
type Outcome string

// The outcomes of a run. Later versions may have more.
const (
	OutcomeDone      Outcome = "done"
	OutcomeDiscarded Outcome = "discarded" // done, though its handler met an error
	OutcomeRunAgain  Outcome = "run_again" // done, and once more
	OutcomeFailed    Outcome = "failed"    // its handler failed; another attempt follows
	OutcomeDead      Outcome = "dead"      // a dead letter now
	OutcomeSnoozed   Outcome = "snoozed"   // its handler asked to run later, by handlers.Snooze; no attempt
	OutcomeThrottled Outcome = "throttled" // the other side asked to wait, by handlers.RetryAfter; see there
	OutcomeCanceled  Outcome = "canceled"
	OutcomeExpired   Outcome = "expired"    // removed without a call, by handlers.DiscardExpired
	OutcomeLeaseLost Outcome = "lease_lost" // another run decides
	OutcomeDrained   Outcome = "drained"    // given back as the relay stopped; no attempt
	// OutcomeReleased: given back, no attempt. Its handler was not called, or its batch failed as a
	// whole and it runs by itself next. So is a task that another handler of its group has canceled
	// or replaced.
	OutcomeReleased Outcome = "released"
	// OutcomeInfrastructure: the database or the network failed. No attempt, or it is not known
	// what was committed.
	OutcomeInfrastructure Outcome = "infrastructure"
)

// Event is what changed in a relay.
type Event string

// The events of a [Change]. Later versions may have more.
const (
	EventStarted Event = "started" // Run, Start or RunOnce has begun its work
	EventStopped Event = "stopped" // the relay has ended
	// EventOutageBegan: the relay cannot work with PostgreSQL, see [ErrOutage], or waits for its
	// pool, see [ErrPoolBusy].
	EventOutageBegan Event = "outage_began"
	EventOutageEnded Event = "outage_ended"
	// EventRefusalBegan: PostgreSQL refuses all or a part of the relay's work, see [ErrRefused].
	EventRefusalBegan Event = "refusal_began"
	EventRefusalEnded Event = "refusal_ended"
)

// Change is something that changed in a relay.
type Change struct {
	Event Event
	At    time.Time // by the process's clock
	Types []string  // those that the relay has a handler for, sorted
}

// observers tells the Observers of a relay, and OnDead, what they are to hear.
type observers struct {
	ctx   context.Context // of the run, without its end
	all   []Observer
	dead  *deadLetters
	log   *slog.Logger
	types []string             // of the relay's handlers
	ahead func() time.Duration // PostgreSQL's clock less this process's
	tail  *teller
}

// Observed implements report.Events.
func (o *observers) Observed() bool { return len(o.all) > 0 || o.tail.on() }

// tell calls f with each observer.
func (o *observers) tell(f func(Observer)) {
	for _, one := range o.all {
		if err := guard.Call(func() { f(one) }); err != nil {
			o.log.Error("outbox: an observer panicked", pgerr.LogAttr(err))
		}
	}
}

// Claimed implements report.Events.
func (o *observers) Claimed(h *handler.Handler, tasks int, began, had time.Time) {
	c := Claim{Type: h.Type, Kind: h.Kind, Tasks: tasks, Start: began, Duration: had.Sub(began)}
	o.tell(func(one Observer) {
		if one.Claimed != nil {
			one.Claimed(o.ctx, c)
		}
	})
}

// Began implements report.Events.
func (o *observers) Began(b report.Begun) { o.tail.began(b) }

// Lost implements report.Events.
func (o *observers) Lost(l report.Lost) { o.tail.lost(l) }

// Ended implements report.Events.
func (o *observers) Ended(e report.End) {
	o.tail.ended(e)
	if len(o.all) == 0 {
		return
	}
	end := RunEnd{Type: e.Type, Kind: e.Kind, Start: e.Called, Duration: e.Handled, Tasks: make([]TaskEnd, len(e.Tasks))}
	for i, t := range e.Tasks {
		end.Tasks[i] = TaskEnd{ID: t.ID, Attempt: t.Attempt, Outcome: Outcome(t.Outcome.String()), Reason: t.Reason, Err: t.Err, Waited: t.Waited}
	}
	o.tell(func(one Observer) {
		if one.Ended != nil {
			own := end
			own.Tasks = slices.Clone(end.Tasks)
			one.Ended(o.ctx, own)
		}
	})
}

// Died implements report.Events.
func (o *observers) Died(d report.DeadLetter) {
	o.dead.tell(DeadLetter(d))
}

func (o *observers) tellChange(e Event, at time.Time) {
	o.tell(func(one Observer) {
		if one.Changed != nil {
			one.Changed(o.ctx, Change{Event: e, At: at, Types: slices.Clone(o.types)})
		}
	})
}

// Waited implements report.Events.
func (o *observers) Waited(runAt int64, at time.Time) time.Duration {
	if o.ahead != nil {
		at = at.Add(o.ahead())
	}
	return max(0, at.Sub(time.UnixMicro(runAt)))
}

// DeadLetter is a task that became a dead letter. Its payload is in the table: see
// admin.Client.Payload.
type DeadLetter struct {
	ID          int64
	Key         string // outbox.Task.Key
	Type        string
	Attempt     int // attempts begun
	MaxAttempts int
	Reason      outbox.Reason
	LastError   string // the text of Err, at most 4 kB
	Err         error  // for errors.Is and errors.As: the handler's, or the relay's; see handlers.PanicError
}

const (
	maxDeadLetters   = 1000 // that wait for their call
	deadLetterCall   = 10 * time.Second
	deadLettersAtEnd = deadLetterCall // for how long a run waits for the calls at its end
)

// deadLetters calls Config.OnDead in a goroutine of its own.
type deadLetters struct {
	onDead func(context.Context, DeadLetter)
	log    *slog.Logger
	ctx    context.Context // ends when no further call is made
	stop   context.CancelFunc
	in     chan DeadLetter
	ending chan struct{} // closed when no more come; what outlives its run may still tell, and is not heard
	done   chan struct{}
	out    atomic.Int64 // calls left out that are not logged yet
}

// newDeadLetters returns nil, which does nothing, without a function to call.
func newDeadLetters(ctx context.Context, onDead func(context.Context, DeadLetter), log *slog.Logger) *deadLetters {
	if onDead == nil {
		return nil
	}
	d := &deadLetters{onDead: onDead, log: log, in: make(chan DeadLetter, maxDeadLetters), ending: make(chan struct{}), done: make(chan struct{})}
	d.ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	go d.run()
	return d
}

// tell has OnDead called, unless too many wait for that.
func (d *deadLetters) tell(one DeadLetter) {
	if d == nil {
		return
	}
	select {
	case d.in <- one:
	default:
		if d.out.Add(1) == 1 {
			d.log.Warn("outbox: OnDead is slower than dead letters come; calls are left out", "waiting", maxDeadLetters)
		}
	}
}

func (d *deadLetters) run() {
	defer close(d.done)
	for d.ctx.Err() == nil {
		if len(d.in) == 0 {
			d.report()
		}
		select {
		case one := <-d.in:
			d.call(one)
		case <-d.ending:
			if len(d.in) == 0 {
				return
			}
		}
	}
}

func (d *deadLetters) call(one DeadLetter) {
	ctx, cancel := context.WithTimeout(d.ctx, deadLetterCall)
	defer cancel()
	if err := guard.Call(func() { d.onDead(ctx, one) }); err != nil {
		d.log.Error("outbox: OnDead panicked", "task_type", one.Type, "task_id", one.ID, pgerr.LogAttr(err))
	}
}

// report logs how many calls were left out.
func (d *deadLetters) report() {
	if n := d.out.Swap(0); n > 0 {
		d.log.Warn("outbox: OnDead was not called for some dead letters", "dead_letters", n)
	}
}

// end waits for the calls that are still to be made, up to a bound.
func (d *deadLetters) end() {
	if d == nil {
		return
	}
	close(d.ending)
	select {
	case <-d.done:
	case <-time.After(deadLettersAtEnd):
		d.out.Add(int64(len(d.in)))
	}
	d.stop()
	d.report()
}
