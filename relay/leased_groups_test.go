package relay_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/relay"
)

const (
	claimLeases = "outbox: lease"
	endLeases   = "outbox: complete leased tasks"
)

// counted is a pool that counts how often these two statements were sent, and how many connections
// there were at most when one was.
type counted struct {
	*faulty
	database *database
	calls    map[string]*atomic.Int64
	peak     atomic.Int64
}

func (db *database) counted(t *testing.T) *counted {
	t.Helper()
	c := &counted{faulty: &faulty{before: map[string]func(){}}, calls: map[string]*atomic.Int64{}}
	c.database = db.through(t, c.faulty.wrap)
	for _, call := range []string{claimLeases, endLeases} {
		n := &atomic.Int64{}
		c.calls[call] = n
		c.before[call] = func() {
			n.Add(1)
			now := int64(c.database.Stats().OpenConnections)
			for old := c.peak.Load(); now > old && !c.peak.CompareAndSwap(old, now); old = c.peak.Load() {
			}
		}
	}
	return c
}

// together is a handler whose calls return at the same time, in groups of n.
func together(n int) func(context.Context, *outbox.Task[payload]) error {
	var mu sync.Mutex
	began, gate := 0, make(chan struct{})
	return func(context.Context, *outbox.Task[payload]) error {
		mu.Lock()
		mine := gate
		if began++; began%n == 0 {
			close(gate)
			gate = make(chan struct{})
		}
		mu.Unlock()
		<-mine
		return nil
	}
}

// few checks how many connections there were.
func (c *counted) few(t *testing.T) {
	t.Helper()
	if peak := c.peak.Load(); peak > 16 {
		t.Errorf("%d connections at once", peak)
	}
}

// Promise 5: a lock on a task's row, an operator's or that of a Complete that the task's handler left
// behind, holds up the result of that task only. The results of its group take few connections.
func TestALockedTaskHoldsUpNoResultButItsOwn(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const workers, tasks, locked = 200, 600, 20
	for name, byComplete := range map[string]bool{"by an operator, in a history": false, "by its Complete": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, handler := newDatabase(t), together(workers/2)
			c := db.counted(t)
			db.Enqueue(t, "LEASED", tasks)
			done, unlock := make(chan struct{}), make(chan func(), 1)
			options := []handlers.Option{handlers.Retention(time.Hour)}
			if byComplete {
				options = nil
			}
			run(t, c.database, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
				switch {
				case task.ID != locked:
				case byComplete:
					inside := make(chan struct{})
					go task.Complete(context.Background(), func(*sql.Tx) error { close(inside); <-done; return nil })
					<-inside
				default:
					unlock <- hold(t, db, `SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, task.ID)
				}
				return handler(ctx, task)
			}, options...), relay.Config{Workers: workers})
			db.becomes(t, 8*time.Second, 1, "all others are done", `SELECT count(*) FROM outbox.task`)
			c.few(t)
			close(done)
			if !byComplete {
				(<-unlock)()
			}
			db.Emptied(t, 30*time.Second)
		})
	}
}

// Slots that become free together are claimed for together, and what ends together is written
// together, in few statements. A conflict with another transaction is no error, for RunOnce either,
// and a group stays together. A claim of more than one text can hold is made smaller.
func TestALeasedClaimOrResultThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	for code, call := range map[string]string{"40P01": claimLeases, "40001": endLeases, "54000": claimLeases} {
		t.Run(call+" "+code, func(t *testing.T) {
			db := newDatabase(t)
			const workers = 100
			db.Enqueue(t, "LEASED", workers)
			c := db.counted(t)
			c.arm(call, fault{code: code})
			once(t, c.database, leased(together(workers)), relay.Config{Workers: workers})
			db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
			if n := c.calls[call].Load(); code != "54000" && n > 20 || !c.fired() {
				t.Errorf("%d statements, want at most 20; the fault was met: %v", n, c.fired())
			}
		})
	}
}
