package decide

// Outcome is what became of a task in a run.
type Outcome uint8

// The outcomes. Package relay documents them.
const (
	Infrastructure Outcome = iota
	Done
	Discarded
	RunAgain
	Failed
	Snoozed
	Throttled
	Dead
	Canceled
	LeaseLost
	Drained
	Released
)

var names = [...]string{"infrastructure", "done", "discarded", "run_again", "failed", "snoozed", "throttled", "dead",
	"canceled", "lease_lost", "drained", "released"}

// String is the outcome as relay.Outcome has it.
func (o Outcome) String() string { return names[o] }

// Outcomes are the texts of all.
func Outcomes() []string { return names[:] }
