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
	Expired
	LeaseLost
	Drained
	Released
)

// outcomes say what others act by.
var outcomes = [...]struct {
	name     string // as relay.Outcome has it
	gone     bool   // the task's row is deleted
	succeeds bool   // the handler's writes stay; if it is gone too, the history has it
	tells    bool   // a run in outboxtest, and the record, have its error
	counted  string // the kind of outbox.counter that a task which is gone counts as, in place of finished
	record   string // of the log, one for all such tasks of a run; others have one of their own, or none
}{
	Infrastructure: {name: "infrastructure"},
	Done:           {name: "done", gone: true, succeeds: true},
	Discarded: {name: "discarded", gone: true, succeeds: true, tells: true,
		record: "tasks were discarded by their handler"},
	RunAgain:  {name: "run_again", succeeds: true},
	Failed:    {name: "failed", tells: true},
	Snoozed:   {name: "snoozed"},
	Throttled: {name: "throttled", tells: true},
	Dead:      {name: "dead", tells: true},
	Canceled:  {name: "canceled", gone: true, counted: "canceled", record: "running tasks were canceled"},
	Expired:   {name: "expired", gone: true, counted: "expired", record: "tasks expired and were removed"},
	LeaseLost: {name: "lease_lost"},
	Drained:   {name: "drained"},
	Released:  {name: "released"},
}

// String is the outcome as relay.Outcome has it.
func (o Outcome) String() string { return outcomes[o].name }

// Gone reports whether the task's row is deleted.
func (o Outcome) Gone() bool { return outcomes[o].gone }

// Succeeds reports whether what a Tx or Batch handler wrote stays.
func (o Outcome) Succeeds() bool { return outcomes[o].succeeds }

// Finishes reports whether the task is done, for the history.
func (o Outcome) Finishes() bool { return o.Gone() && o.Succeeds() }

// Tells reports whether a run in outboxtest, and the record, have its error.
func (o Outcome) Tells() bool { return outcomes[o].tells }

// Counted is the kind of outbox.counter that the removal of the task adds to; "" for a task that has finished.
func (o Outcome) Counted() string { return outcomes[o].counted }

// Record is that of the log, one for all such tasks of a run; "" without one.
func (o Outcome) Record() string { return outcomes[o].record }

// Outcomes are the texts of all.
func Outcomes() []string {
	texts := make([]string, len(outcomes))
	for i, o := range outcomes {
		texts[i] = o.name
	}
	return texts
}
