package taskview

import (
	"cmp"
	"maps"
	"slices"

	"github.com/txoutbox/outbox/admin"
)

// Sum is the counts of all the types together, with the greatest OldestReady. The rest is zero.
func Sum(types []admin.Type) (sum admin.Type) {
	for _, t := range types {
		sum.Ready += t.Ready
		sum.Scheduled += t.Scheduled
		sum.Leased += t.Leased
		sum.Waiting += t.Waiting
		sum.Dead += t.Dead
		sum.Finished += t.Finished
		sum.Failed += t.Failed
		sum.OldestReady = max(sum.OldestReady, t.OldestReady)
	}
	return sum
}

// TypeRuns are the runs of one type in a relay.
type TypeRuns struct {
	Type   string // "" where it is not known
	Tasks  int
	Oldest admin.Run
	Lost   bool // one of them at least
}

// RunsByType are a relay's runs by type, those with most tasks first.
func RunsByType(r admin.Relay) []TypeRuns {
	by := map[string]TypeRuns{}
	for _, run := range r.Runs { // the oldest first
		of, found := by[run.Type]
		if !found {
			of = TypeRuns{Type: run.Type, Oldest: run}
		}
		of.Tasks += len(run.TaskIDs)
		of.Lost = of.Lost || run.Lost
		by[run.Type] = of
	}
	return slices.SortedFunc(maps.Values(by), func(a, b TypeRuns) int {
		return cmp.Or(cmp.Compare(b.Tasks, a.Tasks), cmp.Compare(a.Type, b.Type))
	})
}
