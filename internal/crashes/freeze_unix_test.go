//go:build unix

package crashes_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

var freezeTests = map[string]func(*testing.T){
	"a relay that was frozen past its lease changes nothing":               testFrozenPastItsLease,
	"a relay that is frozen in a transaction lets go and leaves no effect": testFrozenInATransaction,
}

// C7, F6.
func testFrozenPastItsLease(t *testing.T) {
	db := newGatedDatabase(t)
	const tasks = 20
	db.Enqueue(t, "LEASED", tasks)
	p := start(t, db, "gated", tasks+1)
	relaytest.Eventually(t, 20*time.Second, "the relay runs them", func() bool { return db.Int(t, `SELECT count(*) FROM start`) == tasks })
	signal(t, p, syscall.SIGSTOP)
	relaytest.Taker(t, db)
	relaytest.Eventually(t, 30*time.Second, "the leases are taken over", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'leased'`) == 0
	})
	db.NotSuspects(t)
	var held atomic.Int32
	release := make(chan struct{})
	relaytest.Run(t, db.DB, relaytest.Holder(&held, release), relay.Config{Workers: tasks, PollInterval: 50 * time.Millisecond})
	relaytest.Eventually(t, 10*time.Second, "another relay has run half of them and runs the others", func() bool {
		return held.Load() == tasks/2 && db.Int(t, `SELECT count(*) FROM outbox.task`) == tasks/2
	})
	before := db.Tasks(t)
	db.Do(t, `UPDATE gate SET open = true`)
	signal(t, p, syscall.SIGCONT)
	relaytest.Eventually(t, 20*time.Second, "the handlers have ended that were frozen", func() bool { return db.Int(t, `SELECT count(*) FROM ending`) == tasks })
	relaytest.Eventually(t, 20*time.Second, "their relay has noticed that it lost the leases", func() bool {
		return p.Log.Count("a lease was lost before its task ended") == tasks
	})
	if after := db.Tasks(t); after != before {
		t.Errorf("the relay that was frozen changed tasks of another:\n%s\n%s", before, after)
	}
	if n := db.Int(t, `SELECT count(*) FROM ending WHERE lease_lost`); n != tasks/len(relaytest.StaleEnds) {
		t.Errorf("%d stale completions got ErrLeaseLost, want %d", n, tasks/len(relaytest.StaleEnds))
	}
	close(release)
	db.Emptied(t, time.Minute)
	db.OnceEach(t, tasks)
}

// F26.
func testFrozenInATransaction(t *testing.T) {
	db := newGatedDatabase(t)
	db.Enqueue(t, "TX", 1)
	p := start(t, db, "gated", 3)
	relaytest.Eventually(t, 20*time.Second, "the relay runs it", func() bool { return db.Int(t, `SELECT count(*) FROM start`) == 1 })
	signal(t, p, syscall.SIGSTOP)
	reg := handlers.New()
	handlers.Tx(reg, relaytest.TypeTx, relaytest.TxEffect)
	relaytest.Run(t, db.DB, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	// The handler's timeout of 0.1 s, what a relay takes to abandon it, and 10 s for bookkeeping.
	relaytest.Eventually(t, 2*time.Minute, "another relay has run it", func() bool { return db.Int(t, `SELECT count(*) FROM effect`) == 1 })
	db.Do(t, `UPDATE gate SET open = true`)
	signal(t, p, syscall.SIGCONT)
	relaytest.Eventually(t, 20*time.Second, "the relay has noticed that its connection is gone", func() bool { return p.Log.Count("level=WARN") > 0 })
	db.Enqueue(t, "TX", 20) // it works again, for whichever relay
	db.Emptied(t, time.Minute)
	db.OnceEach(t, 21)
	if n := db.Int(t, `SELECT attempt FROM effect ORDER BY at LIMIT 1`); n != 2 {
		t.Errorf("the task was done in attempt %d, want 2: the frozen run is one", n)
	}
}

func signal(t *testing.T, p *process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}
