package relay

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/txoutbox/outbox/internal/pg"
	"github.com/txoutbox/outbox/internal/plan"
	"github.com/txoutbox/outbox/internal/run"
)

const (
	pollAgain    = 20 * time.Millisecond // how old it is when a busy relay polls for work of other types
	pollPause    = 2 * time.Millisecond  // between polls that wake-ups or timers ask for
	duePause     = 20 * time.Millisecond // where the last poll could not promote what was due
	emptyPause   = 5 * time.Millisecond  // between the first polls that find nothing
	idleAfter    = 6                     // empty polls in a row: until then, what was being inserted may still commit
	prolongAfter = 30 * time.Second      // an idle relay sets its wake-up request anew with the first poll after that
	burstSize    = 4                     // wake-ups, each within burstPause of the one before,
	burstPause   = 10 * time.Millisecond
	suppressFor  = 4 * time.Second        // let a relay poll each burstPause instead for so long
	passing      = 3                      // failed polls in a row that may be those of single connections
	parkFor      = 500 * time.Millisecond // until one more slot may try again to get a connection
)

// dispatcher decides what to do next. It is a loop that owns all it knows, hears of everything as a
// function to call, and does no I/O itself.
type dispatcher struct {
	r         *run.Runner // runs what it claims
	leases    *run.Leases // and leased tasks
	config    Config
	rates     rates
	alive     func(now time.Time) error // nil while it may claim
	notified  func() bool               // of new tasks, by LISTEN
	pollLanes func(context.Context, pollOptions) (*pollResult, error)
	answered  *pg.Broadcast
	woken     <-chan struct{} // to poll now
	named     <-chan string   // tasks that are ready
	withdrawn <-chan struct{} // another relay may have withdrawn the wake-up request

	ctx    context.Context
	once   bool // RunOnce: end when nothing is left to do
	lanes  lanes
	free   int // slots; a poll takes one too, so the slots bound the connections
	parked int // slots that wait for the server to have connections
	short  struct {
		since, tried time.Time // since when it has too few, zero if it has enough; when the last slot tried again
	}
	claims       int // that have not said yet what they found
	events       chan func()
	outage       pg.Outage
	doubtedAt    time.Time // a lane's error may be an outage, which nothing has denied that began since; zero if there is none
	pollsFailed  int       // in a row
	typeFails    func(taskType string, f *failing)
	stopClaiming func()
	headsFail    func(f *failing)
	heads        failing // promotions of heads of ordering keys
	mute         bool    // without a heartbeat it may not claim
	failed       error   // RunOnce ends with it

	polling         bool
	polledAt        time.Time
	fullPolls       plan.FullPolls
	found           bool // work, since the last poll
	hitUnknown      bool // whether the last poll led to work is not known yet
	emptyPolls      int  // polls in a row that led to no work
	nextPoll        time.Time
	nextDue         time.Time // of a scheduled task; zero if none is known
	wakeRequest     int64     // as it was set; 0 if none
	prolongAt       time.Time // when an idle relay sets it anew
	withdrawnAt     time.Time // when another relay last did
	wokeUp          bool      // since the last poll began
	wokeUpAt        time.Time
	burst           int       // wake-ups in a row that came soon after each other
	suppressedUntil time.Time // wake-ups are
	stranded        bool      // RunOnce: dead relays hold leases, to be taken over
}

// run dispatches until ctx ends or, with once, nothing is left; then it waits for what runs.
func (d *dispatcher) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop, stopped := d.ctx.Done(), false
	for {
		pause := time.Hour
		if !stopped {
			pause, stopped = d.step(time.Now())
		}
		if stopped && d.free+d.parked == d.config.Workers {
			return
		}
		timer.Reset(pause)
		select {
		case f := <-d.events:
			f()
		case <-d.woken:
			now := time.Now()
			d.wake(now)
			d.claimNamed(now)
		case <-d.withdrawn:
			if d.emptyPolls >= idleAfter { // it relies on wake-ups
				now := time.Now()
				d.wakeRequest, d.withdrawnAt, d.emptyPolls, d.nextPoll = 0, now, idleAfter, now
			}
		case <-d.r.DuePoke:
			d.nextDue = d.r.TakeDue(d.nextDue)
		case <-timer.C:
		case <-stop:
			stopped, stop = true, nil
		}
	}
}

// wake notes a wake-up. When they come faster than a poll answers them, say because other relays
// are busy with what many enqueuers send, they cost those more than they bring. The relay polls by
// itself then, and suppresses wake-ups for a while.
func (d *dispatcher) wake(now time.Time) {
	if d.burst++; now.Sub(d.wokeUpAt) >= burstPause {
		d.burst = 0
	}
	if d.burst >= burstSize {
		d.suppressedUntil = now.Add(suppressFor)
	}
	d.wokeUp, d.wokeUpAt, d.emptyPolls, d.nextPoll = true, now, 0, now
	d.outage.Hasten(now)
}

// withdraws reports whether the wake-up request is to be withdrawn: the relay has work, or is about
// to see.
func (d *dispatcher) withdraws() bool { return d.wakeRequest > 0 && (d.found || d.wokeUp) }

// step starts what can be started. It returns for how long there is nothing to do but wait for
// events, or that RunOnce is done.
func (d *dispatcher) step(now time.Time) (pause time.Duration, done bool) {
	if d.failed != nil {
		return 0, true
	}
	if err := d.alive(now); err != nil {
		switch {
		case d.ctx.Err() != nil: // its end may be what stopped the heartbeat
		case d.once:
			d.failed = err
			return 0, true
		default:
			d.mute = true
			if !d.polling && d.free > 0 && d.outage.Wait(now) <= 0 {
				d.poll() // an answer ends the heartbeat's pause
			}
			d.outage.Fail(err, now, now)
		}
		return 20 * time.Millisecond, false
	}
	if d.mute {
		d.mute = false
		d.outage.EndPause(now)
	}
	if d.outage.Active() {
		return d.probe(now), false
	}
	age := now.Sub(d.polledAt)
	fresh := age <= pollFresh
	for withdraw := d.withdraws(); fresh && !withdraw && d.free > 0; {
		if !d.claimAll(d.lanes.portions(d.free), now) {
			break
		}
	}
	switch {
	case d.polling || d.free <= 0:
		return time.Hour, false
	case age < pollAgain && d.claims > 0: // they may find more than the poll did
		return pollAgain - age, false
	case d.found || d.lanes.choosable() || d.unconfirmed():
		if d.found { // else it may be work that the limits of its type hold back
			d.emptyPolls = 0
		}
		d.poll()
		return time.Hour, false
	}
	if d.hitUnknown {
		d.hitUnknown = false
		d.emptyPolls++
		d.nextPoll = d.polledAt.Add(d.emptyDelay(now))
	}
	next := d.nextPoll
	if !d.nextDue.IsZero() && d.nextDue.Before(next) {
		next = d.nextDue
	}
	if at := d.lanes.unblocked(now); !at.IsZero() && at.Before(next) {
		next = at
	}
	if again := d.polledAt.Add(pollFresh); d.lanes.declined && again.Before(next) {
		next = again
	}
	earliest := d.polledAt.Add(pollPause)
	if next == d.nextDue && !d.nextDue.After(d.polledAt) {
		earliest = d.polledAt.Add(duePause) // others hold what is due
	}
	if next.Before(earliest) {
		next = earliest
	}
	if wait := next.Sub(now); wait > 0 {
		idle := d.free+d.parked == d.config.Workers && d.nextPoll.After(now) && (d.nextDue.IsZero() || d.nextDue.After(now) && !d.r.WaitingFor(d.nextDue))
		return wait, d.once && idle && !d.stranded
	}
	d.poll()
	return time.Hour, false
}

// probe is the step of a relay that could not work with its database: one poll at a time.
func (d *dispatcher) probe(now time.Time) time.Duration {
	if d.polling || d.free <= 0 {
		return time.Hour
	}
	if wait := d.outage.Wait(now); wait > 0 {
		return wait
	}
	d.poll()
	return time.Hour
}

// emptyDelay is the pause after the latest poll, which led to no work.
func (d *dispatcher) emptyDelay(now time.Time) time.Duration {
	if now.Before(d.suppressedUntil) {
		d.emptyPolls = min(d.emptyPolls, idleAfter-1)
		return burstPause
	}
	if d.emptyPolls <= idleAfter {
		return emptyPause
	}
	interval := d.config.PollInterval
	pause := min(emptyPause<<min(d.emptyPolls-idleAfter, 20), interval)
	if pause == interval {
		pause = interval - rand.N(interval/32)
		d.r.Conns.ReleaseSoon() // the app may need them more
	}
	if d.lanes.capped() {
		pause = min(pause, pollAgain) // busy with one type: others must not wait for a poll
	}
	return pause
}

func (d *dispatcher) poll() {
	now := time.Now()
	d.polling = true
	d.free--
	opts := pollOptions{writable: d.outage.Active() || d.unconfirmed(), stranded: d.once}
	// Without LISTEN it requests nothing. Where no relay does, no Enqueue sends NOTIFY, and an app
	// may use PREPARE TRANSACTION.
	idle := d.emptyPolls >= idleAfter
	if d.notified() && !now.Before(d.suppressedUntil) && (d.outage.Active() || idle && (d.wakeRequest == 0 || !now.Before(d.prolongAt))) {
		opts.requestWakeUp = prolongAfter + 2*d.config.PollInterval // until after that poll
	}
	if d.withdraws() {
		opts.withdraw = d.wakeRequest
	}
	d.found, d.wokeUp = false, false
	opts.resting = d.lanes.resting(now)
	// RunOnce ends when nothing is left, so it needs to see what is below the watermarks.
	full := d.once || d.fullPolls.Due(now)
	if !full {
		opts.spans = d.lanes.spans()
	}
	go func() {
		s, err := d.pollLanes(d.ctx, opts)
		d.events <- func() {
			if opts.withdraw > 0 && err == nil {
				d.wakeRequest = 0
			}
			if err == nil && full {
				d.noteFullPoll(s.took)
				d.noteEmpty(s)
			}
			d.polled(s, err, now)
		}
	}()
}

// noteFullPoll notes how long a full poll took. Where that is nothing, claims begin at the head.
func (d *dispatcher) noteFullPoll(took time.Duration) {
	now := time.Now()
	d.fullPolls.Note(took, now)
	if !d.fullPolls.Quick() {
		return
	}
	for _, c := range d.lanes.all {
		c.starts.ForgetOld(now)
	}
}

// noteEmpty notes which lanes a full poll found to be empty: nothing of them can fail.
func (d *dispatcher) noteEmpty(s *pollResult) {
	for i, c := range d.lanes.all {
		if s.heads[i] == nil && c.running == 0 {
			d.laneWorks(c)
		}
	}
}

func (d *dispatcher) polled(s *pollResult, err error, began time.Time) {
	now := time.Now()
	d.polling, d.polledAt, d.lanes.declined = false, now, false
	d.free++
	if err != nil {
		d.pollFailed(err, began)
		return
	}
	d.pollsFailed = 0
	if d.outage.Active() {
		d.answered.Send()
	}
	d.headsPolled(s.headsRefused, began)
	d.hitUnknown, d.stranded = true, s.stranded
	if s.wakeRequest > 0 && d.withdrawnAt.Before(began) {
		d.wakeRequest, d.prolongAt = s.wakeRequest, began.Add(prolongAfter)
	}
	d.nextDue = time.Time{}
	if s.due {
		d.nextDue = now.Add(s.nextDue)
	}
	for i, c := range d.lanes.all {
		c.polled(s.heads[i])
		if err := s.refused[c.h.Type]; err != nil {
			d.promotionFailed(c, err, began)
		} else if !began.Before(c.promoting.until) {
			d.promotionWorks(c)
		}
	}
	d.noOutage(began)
	if !d.lanes.choosable() { // else a claim may find too few connections
		d.well(began)
	}
}
