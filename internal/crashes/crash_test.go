package crashes_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// pointsSQL makes relay processes stop at named points while the test holds the point's lock, and only then.
const pointsSQL = `
CREATE FUNCTION stop_at(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('application_name') LIKE 'relay-%' THEN
    PERFORM pg_advisory_lock_shared(hashtext(name)), pg_advisory_unlock_shared(hashtext(name));
  END IF;
END $$;
CREATE FUNCTION at_point() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM public.stop_at(TG_ARGV[0]); RETURN NULL; END $$;
CREATE TRIGGER a AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'ready') EXECUTE FUNCTION at_point('claimed');
CREATE TRIGGER b AFTER UPDATE ON outbox.task FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION at_point('leased');
CREATE CONSTRAINT TRIGGER c AFTER UPDATE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION at_point('lease committed');
CREATE TRIGGER d AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION at_point('completed');
CREATE CONSTRAINT TRIGGER e AFTER DELETE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION at_point('completion committed');
CREATE TRIGGER f AFTER INSERT ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('journalled');
CREATE TRIGGER g AFTER DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('handler returned');`

var points = []string{"claimed", "journalled", "handler begun", "effect written", "handler returned",
	"leased", "lease committed", "completed", "completion committed"}

// effectTypes is the number of types that effects has handlers for.
const effectTypes = 4

// enqueueAll enqueues n tasks of each of them.
func enqueueAll(t testing.TB, db *relaytest.Database, n int) {
	t.Helper()
	for _, name := range []string{"TX", "BATCH", "LEASED", "PLAIN"} {
		db.Enqueue(t, name, n)
	}
}

// C1, F14, F16.
func testKilledAtEachPoint(t *testing.T, db *relaytest.Database) {
	db.Do(t, pointsSQL)
	start(t, db, "effects", 4) // one survives and takes the leases over
	victims := map[string]*process{}
	for range 3 {
		p := start(t, db, "effects", 4)
		victims[p.Name] = p
	}
	gate, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	lock := func(verb, point string) {
		if _, err := gate.ExecContext(context.Background(), fmt.Sprintf(`SELECT pg_advisory_%s(hashtext($1))`, verb), point); err != nil {
			t.Fatal(err)
		}
	}
	const each = 6
	rounds := relaytest.Times(1, 5)
	n := 0
	for range rounds {
		for i, point := range points {
			if i%2 == 1 && !relaytest.CI {
				continue
			}
			lock("lock", point)
			enqueueAll(t, db, each)
			n += effectTypes * each
			var victim *process
			relaytest.Eventually(t, 20*time.Second, "a relay is at the point: "+point, func() bool {
				victim = victims[db.Text(t, `SELECT max(application_name) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event = 'advisory' AND application_name = ANY (string_to_array($1, ' '))`, names(victims))]
				return victim != nil
			})
			victim.Kill9()
			if err := declareDead(db, victim); err != nil {
				t.Fatal(err)
			}
			lock("unlock", point)
			delete(victims, victim.Name)
			p := start(t, db, "effects", 4)
			victims[p.Name] = p
		}
	}
	db.Emptied(t, 3*time.Minute)
	db.OnceEach(t, n)
}

func names(processes map[string]*process) (joined string) {
	for name := range processes {
		joined += name + " "
	}
	return joined
}

// I5.
func TestGuaranteesOfProcesses(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T, *relaytest.Database){}
	if relaytest.CI {
		tests = poisonTests()
	}
	tests["no task is lost or done twice when its relay is killed at any point"] = testKilledAtEachPoint
	if relaytest.Long { // internal/chaos kills relays at random, with all else that fails
		tests["ordering keys keep their order"] = testOrderUnderKills
	}
	if relaytest.CI {
		tests["a suspect costs the other suspects no attempt"] = testSuspectsDoNotCostEachOther
	}
	server := pgtest.Local(t, map[string]string{"max_connections": "1500"})
	withDatabase := map[string]func(*testing.T){}
	for name, test := range tests {
		withDatabase[name] = func(t *testing.T) {
			url, drop, err := server.NewDatabase(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(drop)
			test(t, relaytest.Adopt(t, url))
		}
	}
	relaytest.Together(t, withDatabase)
}
