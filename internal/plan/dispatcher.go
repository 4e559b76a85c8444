package plan

import "time"

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
			&lane{index: i, of: t, leased: t.Kind == leasedKind, starts: Starts{Random: p.Random}})
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
	age := now.Sub(d.polledAt)
	for age <= pollFresh && !d.withdraws() && d.free > 0 && d.claimNext(now) {
	}
	switch {
	case d.polling || d.free <= 0:
		return noTimer, false
	case d.promotions.unseen:
		d.poll(now)
		return noTimer, false
	case age < pollAgain && d.claims > 0: // they may find more than the poll did
		return pollAgain - age, false
	case d.foundWork || d.lanes.choosable(now) || d.doubted():
		if d.foundWork { // else it may be work that the limits of its type hold back
			d.emptyPolls = 0
		}
		d.poll(now)
		return noTimer, false
	}
	if d.unused {
		d.unused = false
		d.emptyPolls++
		d.nextPoll = d.polledAt.Add(d.emptyDelay(now))
	}
	if wait := d.timer(now).Sub(now); wait > 0 {
		idle := d.free+d.conns.withheld == d.params.Workers && d.nextPoll.After(now) &&
			(d.nextDue.IsZero() || d.nextDue.After(now) && !d.now.Postponed(d.nextDue)) &&
			!d.promotions.pending()
		return wait, d.params.Once && idle && !d.stranded
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
	if !d.polling && d.free > 0 && d.outage.Wait(now) <= 0 {
		d.poll(now)
	}
	if !d.outage.Active() { // else polls say what it is
		d.outageFails(f, now)
	}
	return beatPause, false
}

// probe is the step of a relay that could not work with its database: one poll at a time.
func (d *Dispatcher) probe(now time.Time) time.Duration {
	if d.polling || d.free <= 0 {
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
	case ClaimEnded:
		d.claimEnded(e)
	case LeasesEnded:
		d.leasesEnded(e)
	case ResultStuck:
		d.resultStuck(e)
	}
}
