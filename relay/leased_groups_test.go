package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
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

// Slots that become free together are claimed for together, and what ends together is written
// together: few statements and connections do for many workers.
func TestManyLeasedTasksTakeFewStatementsAndConnections(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]relay.Order{"in order": relay.InOrder, "random": relay.Random} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			const workers, tasks = 200, 600
			db.Enqueue(t, "LEASED", tasks)
			c := db.counted(t)
			once(t, c.database, leased(together(workers)), relay.Config{Workers: workers, Order: order})
			db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
			for call, n := range c.calls {
				if n := n.Load(); n > tasks/8 {
					t.Errorf("%s: %d statements for %d tasks", call, n, tasks)
				}
			}
			if peak := c.peak.Load(); peak > 16 {
				t.Errorf("%d connections at once", peak)
			}
		})
	}
}

// A result that PostgreSQL refuses holds the others of its group up neither with its statement nor
// with the commit, and does not take a connection for each of them.
func TestARefusedResultOfAGroupTakesFewConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, trigger := range map[string]string{
		"at once": `TRIGGER refuse BEFORE DELETE ON outbox.task`, "by the commit": `CONSTRAINT TRIGGER refuse AFTER DELETE ON outbox.task DEFERRABLE INITIALLY DEFERRED`} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			const workers = 200
			db.Enqueue(t, "LEASED", workers)
			db.Do(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
				CREATE `+trigger+` FOR EACH ROW WHEN (OLD.task_id = 100) EXECUTE FUNCTION refuse()`)
			c := db.counted(t)
			once(t, c.database, leased(together(workers)), relay.Config{Workers: workers})
			db.want(t, "100 leased", "left", `SELECT string_agg(task_id || ' ' || state, ', ') FROM outbox.task`)
			if peak := c.peak.Load(); peak > 16 {
				t.Errorf("%d connections at once", peak)
			}
			db.Do(t, `DROP TRIGGER refuse ON outbox.task`)
		})
	}
}

// Promise 5: who holds a task's row, an operator or a Complete that its handler left behind, holds
// up the result of that task only.
func TestALockedTaskHoldsUpNoResultButItsOwn(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const workers, tasks, locked = 50, 150, 20
	inGroup := func() func(context.Context, *outbox.Task[payload]) error { return together(workers / 2) }
	for name, c := range map[string]struct {
		handler func(context.Context, *outbox.Task[payload]) error
		options []handlers.Option
	}{
		"in a group":   {handler: inGroup()},
		"alone":        {handler: func(context.Context, *outbox.Task[payload]) error { return nil }},
		"in a history": {handler: inGroup(), options: []handlers.Option{handlers.Keep(time.Hour)}},
	} {
		for _, byComplete := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, locked by its Complete: %t", name, byComplete), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.Enqueue(t, "LEASED", tasks)
				done, locks := make(chan struct{}), make(chan func(), 1)
				run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
					if task.ID == locked && byComplete {
						inside := make(chan struct{})
						go task.Complete(context.Background(), func(*sql.Tx) error { close(inside); <-done; return nil })
						<-inside
					} else if task.ID == locked {
						locks <- hold(t, db, `SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE`, task.ID)
					}
					return c.handler(ctx, task)
				}, c.options...), relay.Config{Workers: workers})
				db.becomes(t, 8*time.Second, 1, "all others are done", `SELECT count(*) FROM outbox.task`)
				close(done)
				if !byComplete {
					(<-locks)()
				}
				db.Emptied(t, 30*time.Second)
			})
		}
	}
}

// For RunOnce a conflict with another transaction is no error, and a group stays together.
func TestAConflictOfALeasedClaimOrResultIsTriedAgain(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for call, code := range map[string]string{claimLeases: "40P01", endLeases: "40001"} {
		t.Run(call+" "+code, func(t *testing.T) {
			db := newDatabase(t)
			const workers = 100
			db.Enqueue(t, "LEASED", workers)
			c := db.counted(t)
			c.arm(call, fault{code: code})
			once(t, c.database, leased(together(workers)), relay.Config{Workers: workers})
			db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
			if n := c.calls[call].Load(); n > 20 || !c.fired() {
				t.Errorf("%d statements, want at most 20; the fault was met: %v", n, c.fired())
			}
		})
	}
}

// More than one text can hold is claimed one by one.
func TestALeasedClaimThatIsTooLargeIsMadeSmaller(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "LEASED", 20)
	c := db.counted(t)
	c.arm(claimLeases, fault{code: "54000"})
	once(t, c.database, leased(together(1)), relay.Config{Workers: 20})
	db.want(t, 0, "tasks left", `SELECT count(*) FROM outbox.task`)
	if !c.fired() {
		t.Error("the claim was not refused")
	}
}
