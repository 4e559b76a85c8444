package relay_test

import (
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/upkeep"
)

func TestEachSharedJobIsAmongTheFaultyLoops(t *testing.T) {
	t.Parallel()
	for _, j := range upkeep.SharedJobs(time.Hour) {
		if !slices.ContainsFunc(faultyLoops, func(l faultyLoop) bool { return l.job == j.Name }) {
			t.Errorf("faultyLoops has no loop of the shared job %q", j.Name)
		}
	}
}
