package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// counted is a pool that counts how often these statements were sent, and how many connections there were at most when one was.
type counted struct {
	*faulty
	database *database
	calls    map[string]*atomic.Int64
	peak     atomic.Int64
}

const (
	claimLeases = "outbox: lease"
	endLeases   = "outbox: complete leased tasks"
)

func (db *database) counted(t *testing.T) *counted {
	t.Helper()
	connector, err := pq.NewConnector(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{faulty: &faulty{Connector: connector, before: map[string]func(){}}, calls: map[string]*atomic.Int64{}}
	pool := sql.OpenDB(c.faulty)
	t.Cleanup(func() { pool.Close() })
	c.database = &database{&relaytest.Database{DB: pool, URL: db.URL}}
	for _, call := range []string{claimLeases, endLeases} {
		n := &atomic.Int64{}
		c.calls[call] = n
		c.before[call] = func() {
			n.Add(1)
			c.sample()
		}
	}
	return c
}

// sample takes the number of connections down, if it is the highest so far.
func (c *counted) sample() {
	now := int64(c.database.Stats().OpenConnections)
	for old := c.peak.Load(); now > old && !c.peak.CompareAndSwap(old, now); old = c.peak.Load() {
	}
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

// Slots that become free together are claimed for together, and what ends together is written together: so few statements and
// connections do for many workers.
func TestManyLeasedTasksTakeFewStatementsAndConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, order := range map[string]relay.Order{"in order": relay.InOrder, "random": relay.Random} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			const workers, rounds = 200, 5
			db.Enqueue(t, "LEASED", rounds*workers)
			c := db.counted(t)
			once(t, c.database, leased(together(workers)), relay.Config{Workers: workers, Order: order})
			if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 {
				t.Fatalf("%d tasks are left", n)
			}
			for call, n := range c.calls {
				if n := n.Load(); n > rounds*workers/8 {
					t.Errorf("%s: %d statements for %d tasks", call, n, rounds*workers)
				}
			}
			if peak := c.peak.Load(); peak > 16 {
				t.Errorf("%d connections at once", peak)
			}
		})
	}
}

// One result that PostgreSQL refuses, with its statement or with the commit, neither holds the others of its group up nor takes a connection for each of them.
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
			log := once(t, c.database, leased(together(workers)), relay.Config{Workers: workers})
			if left := db.Text(t, `SELECT string_agg(task_id || ' ' || state, ', ') FROM outbox.task`); left != "100 leased" {
				t.Errorf("left: %s; want 100 leased", left)
			}
			if !strings.Contains(log, "was refused") {
				t.Error("it is not logged")
			}
			if peak := c.peak.Load(); peak > 16 {
				t.Errorf("%d connections at once", peak)
			}
			db.Do(t, `DROP TRIGGER refuse ON outbox.task`)
		})
	}
}

// Promise 5: who holds a task's row, an operator or a Complete that its handler left behind, holds up the result of that task only: neither
// the others of its group, nor those of later ones.
func TestALockedTaskHoldsUpNoResultButItsOwn(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	const workers, tasks, locked = 50, 150, 20
	for name, hold := range map[string]func(tx *sql.Tx, task *outbox.Task[payload], until <-chan struct{}) error{
		"by an operator": func(tx *sql.Tx, task *outbox.Task[payload], _ <-chan struct{}) error {
			_, err := tx.Exec(`SELECT 1 FROM outbox.task WHERE task_id = $1 FOR UPDATE`, task.ID)
			return err
		},
		"by its Complete": func(_ *sql.Tx, task *outbox.Task[payload], until <-chan struct{}) error {
			inside := make(chan struct{})
			go task.Complete(context.Background(), func(*sql.Tx) error { close(inside); <-until; return nil })
			<-inside
			return nil
		},
	} {
		inGroup := together(workers / 2)
		for among, c := range map[string]struct {
			handler func(context.Context, *outbox.Task[payload]) error
			options []handlers.Option
		}{
			"in a group":   {handler: together(workers / 2)},
			"alone":        {handler: func(context.Context, *outbox.Task[payload]) error { return nil }},
			"in a history": {handler: together(workers / 2), options: []handlers.Option{handlers.Keep(time.Hour)}},
			"with a dead letter": {handler: func(ctx context.Context, task *outbox.Task[payload]) error {
				if err := inGroup(ctx, task); task.ID%3 != 0 {
					return err
				}
				return handlers.Dead(errors.New("no"))
			}},
		} {
			t.Run(name+" "+among, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.Enqueue(t, "LEASED", tasks)
				tx, err := db.BeginTx(context.Background(), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				done := make(chan struct{})
				reg := handlers.New()
				handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
					if task.ID == locked {
						if err := hold(tx, task, done); err != nil {
							t.Error(err)
						}
					}
					return c.handler(ctx, task)
				}, c.options...)
				run(t, db, reg, relay.Config{Workers: workers})
				eventually(t, 8*time.Second, "all others are done", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 1 })
				close(done)
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
				db.Emptied(t, 30*time.Second)
			})
		}
	}
}

// Whoever has to give way to another transaction tries again: for RunOnce it is no error, and a group stays together.
func TestAConflictOfALeasedClaimOrResultIsTriedAgain(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for call, most := range map[string]int64{claimLeases: 20, endLeases: 20} {
		for _, code := range []string{"40P01", "40001"} {
			t.Run(call+" "+code, func(t *testing.T) {
				db := newDatabase(t)
				const workers = 100
				db.Enqueue(t, "LEASED", workers)
				c := db.counted(t)
				c.arm(call, fault{code: code})
				once(t, c.database, leased(together(workers)), relay.Config{Workers: workers})
				if n := db.Int(t, `SELECT count(*) FROM outbox.task`); n != 0 || !c.fired() {
					t.Errorf("%d tasks are left, the fault was met: %v", n, c.fired())
				}
				if n := c.calls[call].Load(); n > most {
					t.Errorf("%d statements, want at most %d", n, most)
				}
			})
		}
	}
}

// With the smallest pool that is accepted for Leased handlers alone nothing waits for ever, not even for their Complete.
func TestAPoolForLeasedHandlersMayBeSmallerThanTheirWorkers(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	const workers, tasks = 200, 1000
	pool := open(t, db.URL)
	pool.SetMaxOpenConns(11)
	if _, err := relay.New(pool.DB, leased(leasedEffect), relay.Config{Workers: workers}); err == nil {
		t.Error("a pool of 11 connections is accepted")
	}
	pool.SetMaxOpenConns(12)
	db.Enqueue(t, "LEASED", tasks)
	run(t, pool, leased(leasedEffect), relay.Config{Workers: workers})
	db.Emptied(t, 30*time.Second)
	if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`); n != tasks {
		t.Errorf("effects of %d tasks, want %d", n, tasks)
	}
}
