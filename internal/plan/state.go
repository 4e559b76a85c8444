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
	claims  int   // that have not told yet what they found

	outage      Outage
	doubtedAt   time.Time // a lane's error may be an outage, which no later success has denied; zero if there is none
	pollsFailed int       // in a row
	noHeartbeat bool      // so it may not claim
	conns       fewConns

	promotions promotions

	polling         bool
	polledAt        time.Time
	fullPolls       FullPolls
	foundWork       bool // since the last poll
	unused          bool // the last poll has not led to work yet
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

// fewConns are the slots that are withheld, as the server has too few connections.
type fewConns struct {
	withheld       int
	retryAt        time.Time // when one of them may try again
	since, triedAt time.Time // since when it has too few, zero if it has enough; when the last slot tried again
}

// promotions are what is known of scheduled tasks that are due, and of ordering keys without a
// head. One promotion at a time makes a part of them ready. It has a slot, and so a connection, of
// its own, as claims of other tasks do not wait for it.
type promotions struct {
	next     Promote   // what the latest poll saw, if that began after the end of the latest promotion
	running  bool      // a promotion is under way
	endedAt  time.Time // when the latest one did
	unseen   bool      // what it made ready was not polled yet
	held     bool      // it found due tasks locked
	limit    int       // of the next one
	turn     time.Time // until then it leaves the last free slot to claims
	pause    time.Time // until then the next one does not begin
	heads    Failing   // of heads of ordering keys
	requests requestMark
}

// pending reports whether there is something to promote, for RunOnce.
func (p *promotions) pending() bool {
	return p.held || len(p.next.Types) > 0 || p.next.Request > 0
}

func (d *Dispatcher) do(a Action) { d.actions = append(d.actions, a) }
