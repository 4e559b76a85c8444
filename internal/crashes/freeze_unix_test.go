//go:build unix

package crashes_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// F26.
func TestARelayThatIsFrozenInATransactionLetsGoAndLeavesNoEffect(t *testing.T) {
	needs.Long(t) // internal/chaos stops processes, too
	t.Parallel()
	db := newGatedDatabase(t)
	db.Enqueue(t, "TX", 1)
	p := start(t, db, "gated", 3)
	relaytest.Eventually(t, 20*time.Second, "the relay runs it", func() bool { return db.Int(t, `SELECT count(*) FROM start`) == 1 })
	signal := func(s syscall.Signal) {
		if err := p.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	reg := handlers.New()
	relaytest.Tx(reg, relaytest.TypeTx, relaytest.TxEffect)
	relaytest.Run(t, db.DB, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	// The handler's timeout of 0.1 s, what a relay takes to abandon it, and 10 s for bookkeeping.
	relaytest.Eventually(t, 2*time.Minute, "another relay has run it", func() bool { return db.Int(t, `SELECT count(*) FROM effect`) == 1 })
	db.Do(t, `UPDATE gate SET open = true`)
	signal(syscall.SIGCONT)
	relaytest.Eventually(t, 20*time.Second, "the relay has noticed that its connection is gone", func() bool { return p.Log.Count("level=WARN") > 0 })
	db.Enqueue(t, "TX", 20) // it works again, for whichever relay
	db.Emptied(t, time.Minute)
	db.OnceEach(t, 21)
	if n := db.Int(t, `SELECT attempt FROM effect ORDER BY at LIMIT 1`); n != 2 {
		t.Errorf("the task was done in attempt %d, want 2: the frozen run is one", n)
	}
}
