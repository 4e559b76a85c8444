package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

// A type of a higher priority holds the others back while it has work.
func TestBoundsByPriorityDecideWhatIsClaimed(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	strict := func(_ context.Context, l relay.Load) map[string]int {
		most := map[string]int{}
		for _, t := range l.Types {
			for _, other := range l.Types {
				if other.Waiting && other.Priority < t.Priority {
					most[t.Type] = 0
				}
			}
		}
		return most
	}
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
		once(t, db, reg, relay.Config{Workers: 4, WorkersByType: strict})
		db.wantRows(t, 0, `outbox.task`)
		urgent = 120 - int(others.Load())
	}
}

// A relay goes on by itself when what held a type back has passed.
func TestATypeThatWasHeldBackStartsByItself(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 10)
	var most, asked atomic.Int64
	r := run(t, db, all(), relay.Config{PollInterval: time.Minute, WorkersByType: func(context.Context, relay.Load) map[string]int {
		asked.Add(1)
		return map[string]int{"TX": int(most.Load())}
	}})
	eventually(t, 20*time.Second, "it is asked again", func() bool { return asked.Load() > 20 })
	db.wantRows(t, 10, `outbox.task`)
	most.Store(1)
	db.Emptied(t, 20*time.Second)
	r.Stop()
	db.OnceEach(t, 10)
}
