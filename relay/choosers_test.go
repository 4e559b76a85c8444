package relay_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

type chooserFunc func(relay.View) []int

func (f chooserFunc) Choose(v relay.View) []int { return f(v) }

// A type of a higher priority has all workers while it has work; or of four workers A may have three, B one.
func TestAChooserOfTheAppsDecidesWhatIsClaimed(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		choose func(relay.View) []int
		check  func(order []string, mostA, mostB int64) error
	}{
		"strict priority": {func(v relay.View) []int {
			first := 0
			for i, h := range v.Heads {
				if h.Priority < v.Heads[first].Priority {
					first = i
				}
			}
			out := make([]int, len(v.Heads))
			out[first] = v.Heads[first].Room
			return out
		}, func(order []string, _, _ int64) error {
			if n := strings.Count(strings.Join(order[:120], ""), "A"); n < 100 { // by turns it would be 80
				return fmt.Errorf("%d of the first 120 tasks are of the urgent type, want nearly all", n)
			}
			return nil
		}},
		"weights": {func(v relay.View) []int {
			out := make([]int, len(v.Heads))
			for i, h := range v.Heads {
				out[i] = max(min(map[string]int{"A": 3, "B": 1}[h.Type]-h.Running, h.Room), 0)
			}
			return out
		}, func(_ []string, a, b int64) error {
			if a != 3 || b != 1 {
				return fmt.Errorf("at most %d and %d ran at once, want 3 and 1", a, b)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			// A claim that takes longer than 50 ms is not waited for, so on a machine that is busy with something else there is a second try and a third.
			var err error
			for try := 0; try == 0 || err != nil && try < 3; try++ {
				db.Enqueue(t, "A", 120)
				db.Enqueue(t, "B", 40)
				var mu sync.Mutex
				var order []string
				running := [2]inside{}
				reg := handlers.New()
				for i, name := range []string{"A", "B"} {
					handlers.Leased(reg, outbox.NewTaskType[payload](name), func(context.Context, *outbox.Task[payload]) error {
						mu.Lock()
						order = append(order, name)
						mu.Unlock()
						running[i].enter()
						<-time.After(3 * time.Millisecond)
						running[i].now.Add(-1)
						return nil
					}, handlers.Priority(i))
				}
				once(t, db, reg, relay.Config{Workers: 4, Chooser: chooserFunc(c.choose)})
				db.wantRows(t, 0, `outbox.task`)
				err = c.check(order, running[0].most.Load(), running[1].most.Load())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A Chooser may say no for a while, for reasons of its own; the relay asks again, but not all the time.
func TestAChooserThatDeclinesIsAskedAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 10)
	var asked atomic.Int64
	var open atomic.Bool
	run(t, db, all(), relay.Config{PollInterval: time.Minute, Chooser: chooserFunc(func(v relay.View) []int {
		asked.Add(1)
		if !open.Load() {
			return nil
		}
		return relay.Fair().Choose(v)
	})})
	eventually(t, 10*time.Second, "it was asked", func() bool { return asked.Load() > 0 })
	before := asked.Load()
	eventually(t, 20*time.Second, "it is asked again", func() bool { return asked.Load() > before+1 })
	if relaytest.Timing {
		before = asked.Load()
		<-time.After(time.Second)
		if n := asked.Load() - before; n > 60 {
			t.Errorf("it was asked %d times in a second, want about 20", n)
		}
	}
	db.wantRows(t, 0, `effect`)
	open.Store(true)
	db.Emptied(t, 10*time.Second)
}
