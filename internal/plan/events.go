package plan

import "time"

// Event is news for the dispatcher.
type Event interface{ event() }

// Tick is that time has passed, or that the Moment is another.
type Tick struct{}

// Woken is a wake-up: there may be new tasks. Named is the task that it names, or "".
type Woken struct{ Named string }

// Withdrawn is that another relay may have withdrawn the wake-up request.
type Withdrawn struct{}

// Scheduled is that a run has scheduled a task.
type Scheduled struct{ At time.Time }

// Polled is the end of a poll, with its result or its failure.
type Polled struct {
	Poll    Poll
	Result  PollResult
	Failure Failure
}

// PollResult is the result of a poll.
type PollResult struct {
	Heads       []*Head       // by lane
	Took        time.Duration // to read the lanes
	Due         bool          // some task is scheduled, and not due yet
	NextDue     time.Duration // until the first of them is due
	DueTypes    []string      // whose scheduled tasks are due
	Request     int64         // the first request for a promotion by key; 0 if there is none
	LastRequest int64         // without a request, the last that there was; it may not be committed
	WakeRequest int64         // the wake-up request that was set; 0 if none
	Stranded    bool          // dead relays hold leases
}

// Promoted is the end of a promotion.
type Promoted struct {
	Promote Promote
	Done    int // tasks that are ready, and requests that are met
	// Refused has the types whose scheduled tasks PostgreSQL refused to promote, and HeadsRefused
	// the failure of the heads of ordering keys, if its Err is not nil.
	Refused      map[string]Failure
	HeadsRefused Failure
	Failure      Failure // nothing is known of the rest
}

// ClaimFound is the result of a claim that goes on: with its handlers, or with its commit if the tasks are
// leased.
type ClaimFound struct {
	Lane  int
	Claim Claim
	Found Found
}

// NotMade is the reason that a claim was not made.
type NotMade int

// Reasons that a claim was not made: tasks that cannot be read were set aside; the type has no slot left;
// its rate is used up.
const (
	Made NotMade = iota
	SetAside
	NoSlot
	NoToken
)

// ClaimEnded is the end of a claim: of Tx or Batch tasks with their runs, of leased tasks without these,
// which begin now.
type ClaimEnded struct {
	Lane, Slots int // of the claim
	Claim       Claim
	Told        bool // ClaimFound came before
	NotMade     NotMade
	Wait        time.Duration // until the rate has a token
	ClaimSize   int           // tasks of the next claim of Tx or Batch tasks
	Failure     Failure

	// Of Tx or Batch tasks.
	Ran, Keyed bool // tasks ran; tasks with ordering or group keys
	Returned   []Position

	// Of leased tasks.
	Found   Found
	Allowed int // tasks, by the slots of the type
}

// LeasesEnded is that runs of leased tasks have ended, and their results are committed.
type LeasesEnded struct {
	Lanes []LaneEnds
	Keyed bool // one has an ordering or group key
}

// LaneEnds is how many runs of a lane have ended, and how many of them had been told by ResultStuck.
type LaneEnds struct{ Lane, Runs, Stuck int }

// ResultStuck is that PostgreSQL refuses the result of a leased task again and again, though others of the
// type may be recorded. First: it has not been told of that task.
type ResultStuck struct {
	Lane    int
	Failure Failure
	Began   time.Time
	First   bool
}

func (Tick) event()        {}
func (Woken) event()       {}
func (Withdrawn) event()   {}
func (Scheduled) event()   {}
func (Polled) event()      {}
func (Promoted) event()    {}
func (ClaimFound) event()  {}
func (*ClaimEnded) event() {}
func (LeasesEnded) event() {}
func (ResultStuck) event() {}

// Action is what the dispatcher's loop does next.
type Action interface{ action() }

// Poll reads the heads of lanes. Polled answers it.
type Poll struct {
	Began         time.Time
	Writable      bool                     // see first whether the server takes writes
	RequestWakeUp time.Duration            // for so long; 0 for not
	Withdraw      int64                    // the wake-up request; 0 for none
	Stranded      bool                     // find leases of dead relays
	Full          bool                     // read all lanes from their heads
	Spans         [][]Span                 // by lane, the parts to read; nil is all lanes from their heads
	Resting       map[string]time.Duration // types whose scheduled tasks are not promoted, for so long
	FromRequest   int64                    // the first request for a promotion by key to look for
}

// Promote makes tasks ready, beside claims. Promoted answers it.
type Promote struct {
	Began   time.Time
	Types   []string // whose scheduled tasks are due
	Request int64    // the first request for a promotion by key; 0 for none
	Limit   int      // of tasks, and of requests
}

// StartClaim claims tasks for so many slots. ClaimEnded answers it, after ClaimFound.
type StartClaim struct {
	Lane  int
	Claim Claim
	Slots int
}

// Wait waits for an event, for so long at most.
type Wait struct{ For time.Duration }

// Done ends the loop: the dispatcher has stopped, and no work is under way.
type Done struct{ Err error }

// StopClaiming stops the relay's claims.
type StopClaiming struct{}

// ReleaseConns gives idle connections back; DiscardConns closes them.
type (
	ReleaseConns struct{}
	DiscardConns struct{}
)

// TellAnswer tells the relay's other loops that PostgreSQL has answered.
type TellAnswer struct{}

// OutageBegan and OutageEnded are for the log, for Health and for observers. OutageBegan comes
// again when the outage is of another kind now, and for each failure of a lasting one, as its
// reason may be another.
type (
	OutageBegan struct {
		Err     error
		Lasting bool // PostgreSQL answers, and no waiting mends it
		At      time.Time
	}
	OutageEnded struct {
		After time.Duration
		At    time.Time
	}
)

// FewConns and EnoughConns are for the log: the server has no connection for all workers, or has them again.
type (
	FewConns    struct{ Workers int }
	EnoughConns struct{ After time.Duration }
)

// Work is work that may fail.
type Work int

// Claims are the claims of a type and the results of its tasks; Promotions make its scheduled tasks ready;
// Heads makes the heads of ordering keys ready, of all types.
const (
	Claims Work = iota
	Promotions
	Heads
)

// LogFailures logs the failures of a type; "" with Heads.
type LogFailures struct {
	Work    Work
	Type    string
	Failing *Failing
}

// TellFailures tells Health of the failures of a type, or of Heads if it is ""; nil: it works again.
type TellFailures struct {
	Type    string
	Failing *Failing
}

func (Poll) action()         {}
func (Promote) action()      {}
func (StartClaim) action()   {}
func (Wait) action()         {}
func (Done) action()         {}
func (StopClaiming) action() {}
func (ReleaseConns) action() {}
func (DiscardConns) action() {}
func (TellAnswer) action()   {}
func (OutageBegan) action()  {}
func (OutageEnded) action()  {}
func (FewConns) action()     {}
func (EnoughConns) action()  {}
func (LogFailures) action()  {}
func (TellFailures) action() {}
