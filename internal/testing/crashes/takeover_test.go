package crashes_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// F25: a deploy or an eviction kills a busy relay. Its tasks begin again once its heartbeat has run
// out: the first within upkeep.TakenOverWithin, the last within 5 s more.
func TestGuaranteesInTimeOfProcesses(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t, pgtest.Local(t, map[string]string{"max_connections": "1500"}))
	const workers = 500
	f := &fleet{db: db, workers: workers, once: true, expiring: true}
	f.start(t, 2)
	relaytest.Eventually(t, 20*time.Second, "both relays are there", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 2
	})
	enqueue(t, db, "LEASED", 4*workers, `{"Ms": 2000}`)
	killed := f.running()[0]
	const held = `SELECT count(*) FROM outbox.task t JOIN outbox.relay r USING (relay_id) WHERE t.state = 'leased'
		AND r.pid = $1`
	relaytest.Eventually(t, 20*time.Second, "the relay is busy", func() bool {
		return db.Int(t, held, killed.Pid) > workers/2
	})
	killed.Kill9()
	at := db.Text(t, `SELECT clock_timestamp()`)
	lost := db.Int(t, held, killed.Pid)
	db.Do(t, `CREATE TABLE lease (at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE FUNCTION note_lease() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO public.lease DEFAULT VALUES; RETURN NULL; END $$;
		CREATE TRIGGER note_lease AFTER UPDATE ON outbox.task FOR EACH STATEMENT EXECUTE FUNCTION note_lease()`)
	db.Emptied(t, 2*time.Minute)
	if n := db.Int(t, `SELECT count(*) FROM done`); n != 4*workers {
		t.Errorf("%d effects, want %d", n, 4*workers)
	}
	if n := db.Int(t, `SELECT count(*) FROM done WHERE attempt = 2`); lost == 0 || n != lost {
		t.Errorf("%d tasks were done in their second attempt, want the %d that were lost", n, lost)
	}
	within := int(upkeep.TakenOverWithin.Seconds())
	// The last UPDATE leases the last lost task, as the other tasks are done before.
	for what, c := range map[string]struct {
		query string
		more  int
	}{
		"the first, of 2 s, is done": {`SELECT min(at) FROM done WHERE attempt = 2`, 2},
		"the last runs":              {`SELECT max(at) FROM lease`, 5},
	} {
		if relaytest.Timing && db.Text(t, `SELECT (`+c.query+`) <= $1::timestamptz + $2 * interval '1 s'`, at,
			within+c.more) != "true" {
			t.Errorf("of %d lost tasks not within %d s of the death: %s", lost, within+c.more, what)
		}
	}
}
