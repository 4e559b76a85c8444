package plan

import "time"

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
	FromRequest   int64                    // the first request for a head to look for
}

// Promote makes tasks ready, beside claims. Promoted answers it.
type Promote struct {
	Began   time.Time
	Types   []string // whose scheduled tasks are due
	Request int64    // the first request for the head of an ordering key; 0 for none
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
