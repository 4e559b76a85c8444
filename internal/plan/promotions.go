package plan

import (
	"slices"
	"time"
)

const (
	promotePause = 50 * time.Millisecond // after one that did nothing: others hold what is due, or promote heads
	promoteTime  = 50 * time.Millisecond // one that takes longer is followed by a smaller one
	promoteMost  = 1000
	promoteLeast = 20
)

// promotions are what is known of scheduled tasks that are due, of ordering keys without a head, and
// of group keys with a free place. One promotion at a time makes a part of them ready. It has a slot,
// and so a connection, of its own, as claims of other tasks do not wait for it.
type promotions struct {
	next     Promote   // what the latest poll saw, if that began after the end of the latest promotion
	running  bool      // a promotion is under way
	endedAt  time.Time // when the latest one did
	unseen   bool      // what it made ready was not polled yet
	held     bool      // it found due tasks locked
	limit    int       // of the next one
	turn     time.Time // until then it leaves the last free slot to claims
	pause    time.Time // until then the next one does not begin
	heads    Failing   // by key
	requests requestMark
}

// pending reports whether there is something to promote, for RunOnce.
func (p *promotions) pending() bool {
	return p.held || len(p.next.Types) > 0 || p.next.Request > 0
}

// promote begins a promotion, if there is something to do. Of the time of the last free slot
// promotions take at most half while there is something to claim.
func (d *Dispatcher) promote(now time.Time) {
	p := &d.promotions
	if p.running || d.free <= 0 || now.Before(p.pause) || len(p.next.Types) == 0 && p.next.Request == 0 ||
		d.free == 1 && now.Before(p.turn) && d.lanes.choosable(now) {
		return
	}
	a := p.next
	a.Began, a.Limit = now, p.limit
	p.next, p.running = Promote{}, true
	d.free--
	d.do(a)
}

// promotablePolled notes what a poll saw.
func (d *Dispatcher) promotablePolled(r PollResult, began time.Time) {
	p, now := &d.promotions, d.now.Time
	request := r.Request
	if request > 0 && now.Before(p.heads.until) { // PostgreSQL has refused them just now
		request = 0
		d.dueAt(p.heads.until)
	}
	if !p.running && !began.Before(p.endedAt) {
		p.next, p.held = Promote{Types: r.DueTypes, Request: request}, false
	}
	if r.Request == 0 {
		p.requests.note(r.LastRequest, now)
		d.headsEnded(Failure{}, began)
	} else {
		p.requests.note(r.Request, now)
	}
	if (len(r.DueTypes) > 0 || request > 0) && now.Before(p.pause) {
		d.dueAt(p.pause)
	}
}

func (d *Dispatcher) promoted(e Promoted) {
	p, now, began := &d.promotions, d.now.Time, e.Promote.Began
	took := now.Sub(began)
	p.running, p.endedAt, p.turn = false, now, now.Add(took)
	if p.limit = min(2*e.Promote.Limit, promoteMost); took > promoteTime {
		p.limit = max(e.Promote.Limit/2, promoteLeast)
	}
	d.free++
	if f := e.Failure; f.Err != nil {
		d.promotionsFailed(e, f)
	} else {
		d.noOutage(began)
		for _, c := range d.lanes.all {
			switch f, refused := e.Refused[c.of.Name]; {
			case refused:
				d.promotionFailed(c, f, began)
			case slices.Contains(e.Promote.Types, c.of.Name):
				d.works(c, &c.promoting)
			}
		}
		if e.Promote.Request > 0 {
			d.headsEnded(e.HeadsRefused, began)
		}
	}
	if p.unseen = e.Done > 0; !p.unseen {
		p.held, p.pause = len(e.Promote.Types) > 0, now.Add(promotePause)
		d.dueAt(p.pause)
	}
}

// dueAt has the relay poll at a time, or before.
func (d *Dispatcher) dueAt(at time.Time) {
	if d.polls.due.IsZero() || at.Before(d.polls.due) {
		d.polls.due = at
	}
}

// promotionsFailed notes that a promotion did not come to its end. It is an outage if a poll fails
// as well, on another connection.
func (d *Dispatcher) promotionsFailed(e Promoted, f Failure) {
	switch {
	case d.now.Stopping: // its end failed it
		return
	case d.params.Once:
		d.failed = f.Err
		return
	case d.outage.Covers(e.Promote.Began) || d.withhold(f):
		return
	case !f.Answered:
		d.doubtedAt = d.now.Time
	}
	if e.Promote.Request > 0 {
		d.headsEnded(f, e.Promote.Began)
	}
	for _, c := range d.lanes.all {
		if slices.Contains(e.Promote.Types, c.of.Name) {
			d.promotionFailed(c, f, e.Promote.Began)
		}
	}
}

// promotionFailed notes that what is due of a type could not be promoted. What is ready of it is
// claimed all the same.
func (d *Dispatcher) promotionFailed(c *lane, failure Failure, began time.Time) {
	if d.params.Once {
		d.failed = failure.Err
		return
	}
	c.promoting.note(failure, began, d.now.Time)
	d.logFailures(Promotions, c.of.Name, &c.promoting)
	d.tellFailures(c)
}

// headsEnded notes whether tasks could be promoted by their keys, or that there is nothing to
// do. Ready tasks are claimed in both cases.
func (d *Dispatcher) headsEnded(failure Failure, began time.Time) {
	f := &d.promotions.heads
	switch known := f.InARow(); {
	case failure.Err == nil:
		if f.succeeded(); known {
			d.do(TellFailures{})
		}
	case d.params.Once:
		d.failed = failure.Err
	default:
		f.note(failure, began, d.now.Time)
		d.logFailures(Heads, "", f)
		if f.InARow() {
			d.do(TellFailures{"", f})
		}
	}
}
