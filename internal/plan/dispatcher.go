// Package plan decides what the dispatcher of a relay does next, and where claims begin. It does no
// I/O and has no clock.
//
// [Dispatcher.Step] takes an [Event] and the present [Moment], and returns each [Action] that follows.
// The loop around it, in package relay, carries the actions out.
//
//	Dispatcher  polls, wake-ups, failures of the relay's own, free slots
//	lanes       chooses between the types: urgency, fairness, shares, limits
//	lane        the state of one type: credit, rests, claims under way
//	Outage      the pauses while PostgreSQL is unavailable
//	Starts      of a lane: makes its claims, and learns from what they found
//	Start       where a claim begins, and in which order it takes tasks
//	promotions  due tasks and keys without a head: a part at a time, beside claims
//	FullPolls   when a poll reads lanes from their heads, and finds tasks below a watermark
//
// A watermark moves on with claims, 20 ms behind them, and back to a head that a full poll finds
// below it:
//
//	none --100 tasks claimed--> at --claims--> further on
//	                             ^'--a head below--> back to the head
package plan

import "time"

// Params are what a Dispatcher needs.
type Params struct {
	Types            []Type // by lane
	Workers          int
	PollInterval     time.Duration
	StatementTimeout time.Duration
	Random           bool // claims are in random order
	Once             bool // RunOnce: end when nothing is left to do
	// Bound returns how many slots each type may have at most, by its name; nil if the app sets no bounds.
	Bound func(free int, types []Load) map[string]int
}

// Moment is the present, as the loop sees it.
type Moment struct {
	Time        time.Time
	NoHeartbeat Failure                  // its Err is nil while the relay may claim
	Listening   bool                     // wake-ups come by LISTEN
	Stopping    bool                     // no claim begins any more
	Postponed   func(due time.Time) bool // whether a task that is due then may wait for another one's sake
}

// Dispatcher decides what a relay does next. It owns all it knows, hears of everything by events, and
// does no I/O. It is not for concurrent use.
type Dispatcher struct {
	params  Params
	now     Moment
	actions []Action
	lanes   lanes

	free    int   // slots; a poll takes one too, so the slots bound the connections
	stopped bool  // nothing more is begun
	failed  error // RunOnce ends with it
	claims  int   // that look for tasks, or have leased some and commit

	polls      polls
	wakeups    wakeups
	promotions promotions

	outage      Outage
	doubtedAt   time.Time // a lane's error may be an outage, which no later success has denied; zero if there is none
	noHeartbeat bool      // so it may not claim
	conns       fewConns
}

func (d *Dispatcher) do(a Action) { d.actions = append(d.actions, a) }

const (
	beatPause = 20 * time.Millisecond // without a heartbeat, until the next look at it
	noTimer   = time.Hour             // only an event is waited for
)

// New returns the Dispatcher of one run.
func New(p Params) *Dispatcher {
	d := &Dispatcher{params: p, free: p.Workers, lanes: lanes{workers: p.Workers, bound: p.Bound},
		promotions: promotions{limit: promoteMost / 10}}
	for i, t := range p.Types {
		d.lanes.all = append(d.lanes.all,
			&lane{index: i, of: t, starts: Starts{Random: p.Random}})
	}
	return d
}

// Step takes an event, and returns what to do then: the last action is Wait or Done. The slice is valid
// until the next Step.
func (d *Dispatcher) Step(e Event, now Moment) []Action {
	clear(d.actions)
	d.now, d.actions = now, d.actions[:0]
	d.retryConn()
	d.apply(e)
	d.stopped = d.stopped || now.Stopping
	wait := noTimer
	if !d.stopped {
		wait, d.stopped = d.begin(now.Time)
	}
	if d.stopped && d.free+d.conns.withheld == d.params.Workers {
		return append(d.actions, Done{d.failed})
	}
	if d.conns.withheld > 0 {
		wait = min(wait, d.conns.retryAt.Sub(now.Time))
	}
	d.do(Wait{wait})
	return d.actions
}

// begin begins what can be begun. It returns for how long there is nothing to do but wait for events, or
// that RunOnce is done.
func (d *Dispatcher) begin(now time.Time) (pause time.Duration, done bool) {
	if d.failed != nil {
		return 0, true
	}
	if f := d.now.NoHeartbeat; f.Err != nil {
		return d.beginWithoutHeartbeat(f, now)
	}
	if d.noHeartbeat {
		d.noHeartbeat = false
		d.outage.EndPause(now)
	}
	if d.outage.Active() {
		return d.probe(now), false
	}
	d.promote(now)
	age := now.Sub(d.polls.endedAt)
	for age <= pollFresh && !d.withdraws() && d.free > 0 && d.claimNext(now) {
	}
	switch {
	case d.polls.underway || d.free <= 0:
		return noTimer, false
	case d.promotions.unseen:
		d.poll(now)
		return noTimer, false
	case age < pollAgain && d.claims > 0: // they may find more than the poll did
		return pollAgain - age, false
	case d.polls.foundWork || d.lanes.choosable(now) || d.doubted():
		if d.polls.foundWork { // else it may be work that the limits of its type hold back
			d.polls.empty = 0
		}
		d.poll(now)
		return noTimer, false
	}
	if d.polls.unused {
		d.polls.unused = false
		d.polls.empty++
		d.polls.next = d.polls.endedAt.Add(d.emptyDelay(now))
	}
	if wait := d.timer(now).Sub(now); wait > 0 {
		idle := d.free+d.conns.withheld == d.params.Workers && d.polls.next.After(now) &&
			(d.polls.due.IsZero() || d.polls.due.After(now) && !d.now.Postponed(d.polls.due)) &&
			!d.promotions.pending()
		return wait, d.params.Once && idle && !d.polls.stranded
	}
	d.poll(now)
	return noTimer, false
}

// beginWithoutHeartbeat polls only: an answer ends the heartbeat's pause.
func (d *Dispatcher) beginWithoutHeartbeat(f Failure, now time.Time) (pause time.Duration, done bool) {
	if d.params.Once {
		d.failed = f.Err
		return 0, true
	}
	d.noHeartbeat = true
	if !d.polls.underway && d.free > 0 && d.outage.Wait(now) <= 0 {
		d.poll(now)
	}
	if !d.outage.Active() { // else polls say what it is
		d.outageFails(f, now)
	}
	return beatPause, false
}

// probe is the step of a relay that could not work with its database: one poll at a time.
func (d *Dispatcher) probe(now time.Time) time.Duration {
	if d.polls.underway || d.free <= 0 {
		return noTimer
	}
	if wait := d.outage.Wait(now); wait > 0 {
		return wait
	}
	d.poll(now)
	return noTimer
}

func (d *Dispatcher) apply(e Event) {
	switch e := e.(type) {
	case Tick:
	case Woken:
		d.wokenUp(e.Named)
	case Withdrawn:
		d.requestWithdrawn()
	case Scheduled:
		d.scheduled(e.At)
	case Polled:
		d.polled(e)
	case Promoted:
		d.promoted(e)
	case ClaimFound:
		d.claimFound(e)
	case *ClaimEnded:
		d.claimEnded(e)
	case LeasesEnded:
		d.leasesEnded(e)
	case ResultStuck:
		d.resultStuck(e)
	}
}
