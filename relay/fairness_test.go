package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// delays are how long tasks waited from their commit to the start of their handler.
type delays []time.Duration

func (d delays) at(quantile float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(int(quantile*float64(len(s))), len(s)-1)]
}

func (d delays) String() string {
	return fmt.Sprintf("p50 %v, p95 %v, p99 %v, most %v of %d", d.at(.5), d.at(.95), d.at(.99), d.at(1), len(d))
}

// probe is a task type whose handlers report their start.
type probe struct {
	taskType string
	started  chan time.Time
}

// newProbe registers a Tx handler for the type, which does nothing else.
func newProbe(reg *handlers.Registry, taskType string) *probe {
	p := &probe{taskType, make(chan time.Time, 1)}
	registerTx(reg, outbox.NewTaskType[payload](taskType), func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
		p.started <- time.Now()
		return nil
	})
	return p
}

// measure enqueues n tasks by plain SQL, one at a time, with the given pause between them.
func (p *probe) measure(t testing.TB, db *database, n int, pause time.Duration) (out delays) {
	t.Helper()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range n {
		<-tick.C
		db.Enqueue(t, p.taskType, 1)
		committed := time.Now()
		select {
		case at := <-p.started:
			out = append(out, max(at.Sub(committed), 0))
		case <-time.After(45 * time.Second): // less than the poll interval of those that must not wait for a poll
			t.Fatalf("a task of type %s did not start within 45 s", p.taskType)
		}
	}
	return out
}

// soon checks that n tasks start, one after the other; with OUTBOX_TEST_TIMING=1, that they start
// within limit, but for one in ten: other load on the machine may delay some of each, and spoil a
// round, but not five.
func (p *probe) soon(t testing.TB, db *database, n int, limit time.Duration) {
	t.Helper()
	quick(t, .9, limit, func() delays { return p.measure(t, db, n, 20*time.Millisecond) })
}

// before checks that the flood of the kind is not done when n tasks of the probe's type have
// started, which came after it.
func (p *probe) before(t testing.TB, db *database, kind string, n int, limit time.Duration) {
	t.Helper()
	p.soon(t, db, n, limit)
	if left := db.Int(t, `SELECT count(*) FROM outbox.task WHERE task_type = $1 AND attempt = 0`, kind); left == 0 {
		t.Error("the other type had to wait for all of the flood")
	}
}

var errAlways = errors.New("it always fails")

// each registers a handler of the kind under its usual type; its results are f's, of a batch those
// for each task.
func each(reg *handlers.Registry, taskType string, f func(ctx context.Context, task *outbox.Task[payload]) error,
	opts ...handlers.Option) {
	relaytest.Register(reg, strings.ToLower(taskType), taskType, 100,
		func(ctx context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			var errs []error
			for _, task := range tasks {
				errs = append(errs, f(ctx, task))
			}
			return errors.Join(errs...)
		}, opts...)
}

// Promise 5, without ListenDSN: a type that floods the queue and fails does not hold another up,
// nor does one that takes long, of which no task ends here.
func TestAFloodOfFailingTasksDoesNotDelayAnotherType(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		for name, c := range map[string]struct {
			slow         bool
			tasks, calls int64 // begun before the other type's first
			limit        time.Duration
		}{"fails": {false, 10_000, 100, 30 * time.Millisecond}, "is slow": {true, 1000, 9, 100 * time.Millisecond}} {
			t.Run(kind+" "+name, func(t *testing.T) {
				db, reg := newDatabase(t), handlers.New()
				db.Enqueue(t, kind, int(c.tasks))
				var calls atomic.Int64
				end := make(chan struct{})
				defer close(end)
				each(reg, kind, func(context.Context, *outbox.Task[payload]) error {
					calls.Add(1)
					if c.slow {
						<-end
					}
					return errAlways
				})
				other := newProbe(reg, "OTHER")
				run(t, db, reg, relay.Config{Workers: 10})
				eventually(t, 20*time.Second, "the flood is worked on", func() bool { return calls.Load() >= c.calls })
				other.before(t, db, kind, 10, c.limit)
			})
		}
	}
}
