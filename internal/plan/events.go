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
	Request     int64         // the first request for the head of an ordering key; 0 if there is none
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
	Ran, Ordered bool // tasks ran; tasks with ordering keys
	Returned     []Position

	// Of leased tasks.
	Found   Found
	Allowed int // tasks, by the slots of the type
}

// LeasesEnded is that runs of leased tasks have ended, and their results are committed.
type LeasesEnded struct {
	Lanes   []LaneEnds
	Ordered bool // one has an ordering key
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
func (ClaimEnded) event()  {}
func (LeasesEnded) event() {}
func (ResultStuck) event() {}
