package decide

// Outcome is what became of a task in a run.
type Outcome uint8

// The outcomes. Package relay documents them.
const (
	Infrastructure Outcome = iota
	Done
	Discarded
	RunAgain
	Retry
	Snoozed
	Throttled
	Dead
	Canceled
	LeaseLost
	Drained
	PutOff
	outcomes
)

// String is the outcome in snake_case.
func (o Outcome) String() string {
	if o >= outcomes {
		return "unknown"
	}
	return [...]string{"infrastructure", "done", "discarded", "run_again", "retry", "snoozed", "throttled", "dead", "canceled", "lease_lost", "drained", "put_off"}[o]
}
