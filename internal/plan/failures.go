package plan

import "time"

const (
	passing  = 3                      // failed polls in a row that may be those of single connections
	retryFor = 500 * time.Millisecond // until one more slot may try again to get a connection
)

// retryConn gives back a withheld slot when its time has come.
func (d *Dispatcher) retryConn() {
	f, now := &d.conns, d.now.Time
	if f.withheld > 0 && !now.Before(f.retryAt) {
		f.withheld, f.triedAt, f.retryAt = f.withheld-1, now, now.Add(retryFor)
		d.free++
	}
}

// withhold gives up a slot for a while where the server only has no more connections, but not the last
// slot.
func (d *Dispatcher) withhold(f Failure) bool {
	if !f.NoConnection || d.conns.withheld >= d.params.Workers-1 || d.outage.Active() {
		return false
	}
	now := d.now.Time
	if d.conns.since.IsZero() {
		d.conns.since = now
		d.do(FewConns{d.params.Workers})
	}
	if d.conns.withheld == 0 {
		d.conns.retryAt = now.Add(retryFor)
	}
	d.conns.withheld++
	d.free--
	return true
}

// succeeded notes a success of work that began at the given time.
func (d *Dispatcher) succeeded(began time.Time) {
	d.noOutage(began)
	f := &d.conns
	if !f.since.IsZero() && f.withheld == 0 && began.Sub(f.triedAt) >= retryFor { // the last slot has a connection
		d.do(EnoughConns{d.now.Time.Sub(f.since)})
		f.since = time.Time{}
	}
}

// noOutage notes that PostgreSQL did work that began at the given time.
func (d *Dispatcher) noOutage(began time.Time) {
	if began.After(d.doubtedAt) {
		d.doubtedAt = time.Time{}
	}
	if d.noHeartbeat {
		if f := d.now.NoHeartbeat; f.Err != nil && d.outage.Active() { // it is the heartbeat's alone
			d.outageFails(f, d.now.Time)
		}
		return
	}
	if lasted, ends := d.outage.OK(began, d.now.Time); ends {
		d.do(OutageEnded{lasted, d.now.Time})
	}
}

func (d *Dispatcher) outageFails(f Failure, began time.Time) {
	if d.outage.Fail(began, d.now.Time, f) {
		d.do(OutageBegan{f.Err, f.Lasting, d.now.Time})
	}
}

// doubted reports whether an error of a lane may be an outage, which no success has denied yet.
func (d *Dispatcher) doubted() bool { return !d.doubtedAt.IsZero() }

// pollFailed slows the relay down. A failure that may be the end of one connection only makes it poll again,
// for which it takes another.
func (d *Dispatcher) pollFailed(f Failure, began time.Time) {
	switch {
	case d.now.Stopping: // its end failed it
	case d.params.Once:
		d.failed = f.Err
	case d.withhold(f):
	case f.Passing && !d.outage.Active() && d.pollsFailed < passing:
		d.pollsFailed++
		d.do(DiscardConns{})
		d.polledAt, d.nextPoll = time.Time{}, d.now.Time
	default:
		d.outageFails(f, began)
	}
}

// laneFailed notes that a claim of up to limit tasks failed, or (0) what is recorded of one. That is
// the lane's own matter. It is an outage if a poll fails as well, on another connection.
func (d *Dispatcher) laneFailed(c *lane, limit int, failure Failure, began time.Time) {
	now, f := d.now.Time, &c.failing
	c.credit = max(c.credit, 1)
	switch {
	case d.now.Stopping: // its end failed it
	case d.params.Once:
		if !f.shrink(limit, failure, now.Sub(began), d.params.StatementTimeout) {
			d.failed = failure.Err
		}
	case d.outage.Covers(began):
	case d.withhold(failure):
	default:
		if f.note(failure, began, now); f.shrink(limit, failure, now.Sub(began), d.params.StatementTimeout) {
			f.until = now
		}
		if !failure.Answered {
			d.doubtedAt = now
		}
		d.logFailures(Claims, c.of.Name, f)
		d.tellFailures(c)
	}
}

func (d *Dispatcher) resultStuck(e ResultStuck) {
	c := d.lanes.all[e.Lane]
	if e.First {
		c.stuck++
	}
	switch {
	case d.outage.Covers(e.Began):
		return
	case d.params.Once:
		d.failed = e.Failure.Err
		d.do(StopClaiming{}) // and drain, or it would wait for that result
		return
	}
	c.recording.Times = max(c.recording.Times, failingAfter-1)
	c.recording.note(e.Failure, e.Began, d.now.Time)
	d.logFailures(Claims, c.of.Name, &c.recording)
	d.tellFailures(c)
}

// works notes a success of a lane's claims with all that is recorded of them, or of its promotions; or
// that there is nothing to do.
func (d *Dispatcher) works(c *lane, f *Failing) {
	known := f.fails()
	f.succeeded()
	if known {
		d.tellFailures(c)
	}
}

// logFailures logs failures, if they are to be logged now.
func (d *Dispatcher) logFailures(w Work, name string, f *Failing) {
	if f.logs(d.now.Time) {
		d.do(LogFailures{w, name, f})
	}
}

// tellFailures tells Health whether the type fails. The log names the failures before.
func (d *Dispatcher) tellFailures(c *lane) {
	for _, f := range [...]*Failing{&c.failing, &c.recording, &c.promoting} {
		if f.fails() {
			d.do(TellFailures{c.of.Name, f})
			return
		}
	}
	d.do(TellFailures{c.of.Name, nil})
}
