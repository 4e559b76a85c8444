package relay

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/store"
)

// started runs n tasks of a handler as a claim's, and returns when all results are there.
func started(t *testing.T, n int, handle func(i int64)) {
	t.Helper()
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[struct{}]("STARTS"), func(_ context.Context, task *outbox.Task[struct{}]) error {
		handle(task.ID)
		return nil
	})
	r := &runner{handling: context.Background()}
	l := newLeases(r)
	l.writers = resultWriters // nobody writes them
	defer l.clock.stop()
	var runs []*leasedRun
	for i := range n {
		x := &leasedRun{row: store.Row{ID: int64(i), Max: 10, Attempt: 1, Payload: "{}"}}
		x.claimed(l, reg.Handlers()[0], "")
		runs = append(runs, x)
	}
	l.starts.add(starters(runs))
	for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		l.pending.Lock()
		ended := len(l.waiting)
		l.pending.Unlock()
		if ended == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d runs have ended", ended, n)
		}
	}
}

func TestNoRunWaitsForAHandlerThatTakesItsTime(t *testing.T) {
	t.Parallel()
	const n = 200
	var all sync.WaitGroup
	all.Add(n)
	started(t, n, func(int64) {
		all.Done()
		all.Wait()
	})
}

func TestAHandlerThatEndsItsGoroutineHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	started(t, 200, func(i int64) {
		if i%3 > 0 {
			runtime.Goexit()
		}
	})
}

func TestShortRunsShareGoroutines(t *testing.T) {
	const limit, tries = 500, 3
	var most int64
	for range tries { // where the machine is busy a run can be interrupted, and is not short then
		before := runtime.NumGoroutine()
		var seen atomic.Int64
		started(t, 2000, func(int64) {
			n := int64(runtime.NumGoroutine() - before)
			for old := seen.Load(); n > old && !seen.CompareAndSwap(old, n); old = seen.Load() {
			}
		})
		if most = seen.Load(); most <= limit {
			return
		}
	}
	t.Errorf("%d goroutines for 2,000 short runs", most)
}

// The context of a handler is one as those of package context are, for whoever derives from it or asks for the cause.
func TestALimitedContextEndsAsOneOfPackageContext(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, end := range map[string]struct {
		by   func(c *limited, parent context.CancelCauseFunc)
		err  error
		want error
	}{
		"a cause":       {func(c *limited, _ context.CancelCauseFunc) { c.cancel(boom) }, context.Canceled, boom},
		"the run's end": {func(c *limited, _ context.CancelCauseFunc) { c.cancel(nil) }, context.Canceled, context.Canceled},
		"its parent":    {func(_ *limited, parent context.CancelCauseFunc) { parent(boom) }, context.Canceled, boom},
		"its time":      {func(c *limited, _ context.CancelCauseFunc) { c.endAt(time.Now(), timeoutError(1)) }, context.DeadlineExceeded, timeoutError(1)},
		"its time moved": {func(c *limited, _ context.CancelCauseFunc) {
			c.endAt(time.Now().Add(time.Hour), boom)
			c.endAt(time.Now(), boom)
		}, context.Canceled, boom},
	} {
		for _, asked := range []bool{true, false} { // before its end
			type key struct{}
			parent, endParent := context.WithCancelCause(context.WithValue(context.Background(), key{}, "value"))
			c, release := newLimited(parent)
			called := make(chan struct{})
			var derived context.Context
			derive := func() {
				var cancel context.CancelFunc
				derived, cancel = context.WithCancel(context.WithValue(c, new(int), 1))
				t.Cleanup(cancel)
				context.AfterFunc(c, func() { close(called) })
			}
			if c.Err() != nil {
				t.Errorf("%s: %v before", name, c.Err())
			}
			if asked {
				derive()
				if err := errors.Join(derived.Err(), context.Cause(c), context.Cause(derived)); err != nil || c.Value(key{}) != "value" {
					t.Errorf("%s: %v, value %v before", name, err, c.Value(key{}))
				}
			}
			end.by(c, endParent)
			<-c.Done()
			if !asked {
				derive()
			}
			<-derived.Done()
			<-called
			if c.Err() != end.err || derived.Err() != end.err || context.Cause(c) != end.want || context.Cause(derived) != end.want || c.Value(key{}) != "value" {
				t.Errorf("%s: %v and %v, want %v; causes %v and %v, want %v", name, c.Err(), derived.Err(), end.err, context.Cause(c), context.Cause(derived), end.want)
			}
			release()
			endParent(nil)
		}
	}
}

func TestOneClockRingsForEachEnd(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now := time.Now()
	ends := map[int]time.Time{}
	for i := range 20 {
		ends[i] = now.Add(time.Duration(i*7%20) * 5 * time.Millisecond)
	}
	rung := make(chan int, len(ends))
	c := clock{ring: func(now time.Time) (next time.Time) {
		mu.Lock()
		defer mu.Unlock()
		for i, end := range ends {
			if !end.After(now) {
				delete(ends, i)
				rung <- i
			} else if next.IsZero() || end.Before(next) {
				next = end
			}
		}
		return next
	}}
	defer c.stop()
	for i := range 20 {
		mu.Lock()
		end, ok := ends[i]
		mu.Unlock()
		if ok {
			c.at(end)
		}
	}
	for range 20 {
		select {
		case <-rung:
		case <-time.After(20 * time.Second):
			t.Fatal("it did not ring for all")
		}
	}
}

// The next claim of a lane begins when the last one has found what it takes, and is still to commit.
func TestTheNextLeaseBeginsWhileTheLastOneCommits(t *testing.T) {
	t.Parallel()
	l := newLanes(10, [2]int{})
	c := l.all[0]
	c.h.Kind, c.credit, c.served = handler.KindLeased, 10, time.Now()
	for _, step := range []struct {
		what string
		do   func()
		want int // claims
	}{
		{"nothing under way", func() {}, 1},
		{"one looks", func() { l.leasing(c, 1) }, 0},
		{"it commits", func() { c.finding-- }, 1},
		{"another one looks", func() { l.leasing(c, 1) }, 0},
		{"both commit", func() { c.finding-- }, 0},
		{"one has come back", func() { l.leasing(c, -1) }, 1},
	} {
		step.do()
		if got := len(l.portions(5)); got != step.want {
			t.Errorf("%s: %d claims, want %d", step.what, got, step.want)
		}
	}
	for workers, want := range map[int]int{1: 1, 10: 10, 60: 50, 100: 50, 101: 51, 1000: 500} {
		if got := leasePortion(workers); got != want {
			t.Errorf("a claim of %d workers takes %d, want %d", workers, got, want)
		}
	}
}
