package crashes_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// F25. It waits for a heartbeat to run out.
func TestGuaranteesInTimeOfProcesses(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	t.Run("a killed relay's tasks are taken over within 15 s", testTakeover)
	t.Run("all tasks of a busy relay that is killed run again within 20 s", testTakeoverOfMany)
}

// What a deploy or an eviction does: nothing that was lost once waits for anything else that was.
func testTakeoverOfMany(t *testing.T) {
	server := pgtest.Local(t, map[string]string{"max_connections": "1500"})
	url, drop, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drop)
	db := relaytest.Adopt(t, url)
	const workers = 500
	killed, other := start(t, db, "slow poison", workers), start(t, db, "slow poison", workers)
	relaytest.Eventually(t, 20*time.Second, "both relays are there", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 2 })
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'LEASED', '{"N": 2000}' FROM generate_series(1, $1)`, 4*workers)
	const held = `SELECT count(*) FROM outbox.task t JOIN outbox.relay r USING (relay_id) WHERE t.state = 'leased' AND r.pid = $1`
	relaytest.Eventually(t, 20*time.Second, "the relay is busy", func() bool { return db.Int(t, held, killed.Pid) > workers/2 })
	killed.Kill9()
	at := db.Text(t, `SELECT clock_timestamp()`)
	lost := db.Int(t, held, killed.Pid)
	db.Do(t, `CREATE TABLE lease (at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.lease DEFAULT VALUES; RETURN NULL; END $$;
		CREATE TRIGGER note_lease AFTER UPDATE ON outbox.task FOR EACH STATEMENT EXECUTE FUNCTION note_lease()`)
	db.Emptied(t, 2*time.Minute)
	db.OnceEach(t, 4*workers)
	// The last UPDATE leases the last of them, as the others' tasks are done before. Until its effect is
	// there, a handler takes 2 s, and waits for one of 500 new connections.
	var last float64
	if err := db.QueryRow(`SELECT extract(epoch FROM max(at) - $1::timestamptz) FROM lease`, at).Scan(&last); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d lost tasks began again within %.1f s of the kill", lost, last)
	if os.Getenv("OUTBOX_TEST_TIMING") != "" && last > 20 {
		t.Errorf("the last of %d lost tasks began again after %.1f s, want 20 s at most", lost, last)
	}
	if n := db.Int(t, `SELECT count(*) FROM effect WHERE attempt = 2`); lost == 0 || n != lost {
		t.Errorf("%d tasks were done in their second attempt, want the %d that were lost", n, lost)
	}
	relaytest.Eventually(t, 10*time.Second, "the log has the dead relay", func() bool {
		return other.Log.Count(fmt.Sprintf("host=%s pid=%d tasks=%d isolated=0", host(t), killed.Pid, lost)) == 1
	})
}

func host(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
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
