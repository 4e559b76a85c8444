package crashes_test

import (
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// F25. It waits for a heartbeat to run out.
func TestGuaranteesInTimeOfProcesses(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	t.Run("a killed relay's tasks are taken over within 15 s", testTakeover)
}

func testTakeover(t *testing.T) {
	db := newGatedDatabase(t)
	const tasks = 9
	db.Enqueue(t, "LEASED", tasks)
	p := start(t, db, "gated", 10)
	relaytest.Eventually(t, 20*time.Second, "the relay runs them", func() bool { return db.Int(t, `SELECT count(*) FROM start`) == tasks })
	relaytest.Run(t, db.DB, relaytest.Leased(relaytest.LeasedEffect), relay.Config{PollInterval: 50 * time.Millisecond})
	relaytest.Eventually(t, 10*time.Second, "another relay is there", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 2 })
	p.Kill9()
	killed := db.Text(t, `SELECT clock_timestamp()`)
	db.Emptied(t, 2*time.Minute)
	db.OnceEach(t, tasks)
	var first float64
	if err := db.QueryRow(`SELECT extract(epoch FROM min(at) - $1::timestamptz) FROM effect`, killed).Scan(&first); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("OUTBOX_TEST_TIMING") != "" && first > 15 {
		t.Errorf("the first of a killed relay's tasks ran again after %.1f s, want 15 s at most", first)
	}
	if n := db.Int(t, `SELECT count(*) FROM effect WHERE attempt <> 2`); n != 0 {
		t.Errorf("%d of the runs that died were not counted as attempts", n)
	}
}
