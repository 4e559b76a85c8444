package relay_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
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

// strict gives every worker to the most urgent head, and never to another while that has work.
func strict(v relay.View) []int {
	first := 0
	for i, h := range v.Heads {
		if h.Priority < v.Heads[first].Priority {
			first = i
		}
	}
	out := make([]int, len(v.Heads))
	out[first] = v.Heads[first].Room
	return out
}

// chosen are the starts of tasks of the types A (twice as important) and B, and how many ran at once.
type chosen struct {
	mu      sync.Mutex
	order   []string
	running map[string]*inside
}

func (c *chosen) registry(kind string, work time.Duration) *handlers.Registry {
	c.running = map[string]*inside{"A": {}, "B": {}}
	reg := handlers.New()
	for i, name := range []string{"A", "B"} {
		f := func(context.Context, *outbox.Task[payload]) error {
			c.mu.Lock()
			c.order = append(c.order, name)
			c.mu.Unlock()
			c.running[name].enter()
			<-time.After(work)
			c.running[name].now.Add(-1)
			return nil
		}
		taskType := outbox.NewTaskType[payload](name)
		if kind == "LEASED" {
			handlers.Leased(reg, taskType, f, handlers.Priority(i))
		} else {
			handlers.Batch(reg, taskType, 1, func(ctx context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error { return f(ctx, tasks[0]) }, handlers.Priority(i))
		}
	}
	return reg
}

func (c *chosen) count(name string, first int) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.order[:min(first, len(c.order))] {
		if s == name {
			n++
		}
	}
	return n
}

func TestAChooserOfTheAppsDecidesWhatIsClaimed(t *testing.T) {
	needs.Long(t)
	cases := map[string]struct {
		choose func(relay.View) []int
		check  func(c *chosen) error
	}{
		"strict priority": {strict, func(c *chosen) error {
			if n := c.count("A", 120); n < 100 { // by turns it would be 80
				return fmt.Errorf("%d of the first 120 tasks are of the urgent type, want nearly all", n)
			}
			return nil
		}},
		"weights": {func(v relay.View) []int { // of four workers A may have three, B one
			out := make([]int, len(v.Heads))
			for i, h := range v.Heads {
				out[i] = max(min(map[string]int{"A": 3, "B": 1}[h.Type]-h.Running, h.Room), 0)
			}
			return out
		}, func(c *chosen) error {
			if a, b := c.running["A"].most.Load(), c.running["B"].most.Load(); a != 3 || b != 1 {
				return fmt.Errorf("at most %d and %d ran at once, want 3 and 1", a, b)
			}
			return nil
		}},
		"throttle by free workers": {func(v relay.View) []int { // two workers stay free
			out := relay.Fair().Choose(v)
			for i := range out {
				out[i] = max(min(out[i], v.Free-2), 0)
			}
			return out
		}, func(c *chosen) error {
			if a, b := c.running["A"].most.Load(), c.running["B"].most.Load(); a > 2 || b > 2 {
				return fmt.Errorf("at most %d and %d ran at once, want 2 together", a, b)
			}
			return nil
		}},
		"panics": {func(relay.View) []int { panic("it is broken") }, func(*chosen) error { return nil }},
		"wants everything": {func(v relay.View) []int { return []int{1 << 40, 1 << 40, 1 << 40} }, func(c *chosen) error {
			if a := c.running["A"].most.Load(); a > 4 {
				return fmt.Errorf("%d ran at once, there are 4 workers", a)
			}
			return nil
		}},
	}
	for i, name := range slices.Sorted(maps.Keys(cases)) {
		for k, kind := range []string{"BATCH", "LEASED"} {
			if !relaytest.Long && i%2 != k { // each with one kind
				continue
			}
			c := cases[name]
			t.Run(fmt.Sprint(kind, " ", name), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				// A claim that takes longer than 50 ms is not waited for, so on a machine that is busy with something else there is a second try and a third.
				var err error
				for try := 0; try == 0 || err != nil && try < 3; try++ {
					db.Enqueue(t, "A", 120)
					db.Enqueue(t, "B", 40)
					var got chosen
					once(t, db, got.registry(kind, 3*time.Millisecond), relay.Config{Workers: 4, Chooser: chooserFunc(c.choose)})
					if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
						t.Errorf("%d tasks are left", n)
					}
					err = c.check(&got)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
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
	if n := db.Int(t, `SELECT count(*) FROM effect`); n != 0 {
		t.Errorf("%d tasks ran although the Chooser chose none", n)
	}
	open.Store(true)
	db.Emptied(t, 10*time.Second)
}
