package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

type chooserFunc func(relay.View) []int

func (f chooserFunc) Choose(v relay.View) []int { return f(v) }

// A type of a higher priority has all workers while it has work.
func TestAChooserOfTheAppsDecidesWhatIsClaimed(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	strict := chooserFunc(func(v relay.View) []int {
		first := 0
		for i, h := range v.Heads {
			if h.Priority < v.Heads[first].Priority {
				first = i
			}
		}
		out := make([]int, len(v.Heads))
		out[first] = v.Heads[first].Room
		return out
	})
	// A claim that takes longer than 50 ms is not waited for, so on a machine that is busy with
	// something else there is a second try and a third.
	for try, urgent := 0, 0; urgent < 105; try++ { // of the first 120 tasks; by turns it would be 80
		if try == 3 {
			t.Fatalf("%d of the first 120 tasks are of the urgent type, want nearly all", urgent)
		}
		db.Enqueue(t, "A", 120)
		db.Enqueue(t, "B", 40)
		var ran, others atomic.Int64
		reg := handlers.New()
		for i, name := range []string{"A", "B"} {
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(context.Context, *outbox.Task[payload]) error {
				if n := ran.Add(1); name == "B" && n <= 120 {
					others.Add(1)
				}
				<-time.After(3 * time.Millisecond)
				return nil
			}, handlers.Priority(i))
		}
		once(t, db, reg, relay.Config{Workers: 4, Chooser: strict})
		db.wantRows(t, 0, `outbox.task`)
		urgent = 120 - int(others.Load())
	}
}
