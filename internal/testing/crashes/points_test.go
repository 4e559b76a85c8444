package crashes_test

import (
	"context"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/child"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// pointsSQL adds the points that a relay's statements pass.
const pointsSQL = `
CREATE TRIGGER a AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'ready')
EXECUTE FUNCTION at_point('claimed');
CREATE TRIGGER b AFTER UPDATE ON outbox.task FOR EACH ROW WHEN (NEW.state = 'leased')
EXECUTE FUNCTION at_point('leased');
CREATE CONSTRAINT TRIGGER c AFTER UPDATE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION at_point('lease committed');
CREATE TRIGGER d AFTER DELETE ON outbox.task FOR EACH ROW WHEN (OLD.state = 'leased')
EXECUTE FUNCTION at_point('completed');
CREATE CONSTRAINT TRIGGER e AFTER DELETE ON outbox.task DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.state = 'leased') EXECUTE FUNCTION at_point('completion committed');
CREATE TRIGGER f AFTER INSERT ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('journalled');
CREATE TRIGGER g AFTER DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION at_point('handler returned');`

var points = []string{"claimed", "journalled", "handler begun", "effect written", "handler returned",
	"leased", "lease committed", "completed", "completion committed"}

// C1, F14, F16: a relay is killed at each point. Each iteration of each task takes effect once.
func testKilledAtEachPoint(t *testing.T, db *relaytest.Database) {
	db.Do(t, pointsSQL)
	f := &fleet{db: db, workers: 4}
	f.start(t, 4)
	gate, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	lock := func(verb, point string) {
		if _, err := gate.ExecContext(context.Background(), `SELECT pg_advisory_`+verb+`(hashtext($1))`, point); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for range relaytest.Times(1, 5) {
		for _, point := range points {
			lock("lock", point)
			for name := range kinds {
				enqueue(t, db, name, 3, `{}`)
				enqueue(t, db, name, 3, `{"Again": 2}`)
				n += 3 + 3*3
			}
			var victim *child.Process
			relaytest.Eventually(t, 20*time.Second, "a relay is at the point: "+point, func() bool {
				victim = f.named(db.Text(t, `SELECT max(application_name) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event = 'advisory' AND application_name LIKE 'relay-%'`))
				return victim != nil
			})
			victim.Kill9()
			lock("unlock", point)
		}
	}
	db.Emptied(t, 3*time.Minute)
	if got := db.Int(t, `SELECT count(DISTINCT (task_id, iteration)) FROM done`); got != n {
		t.Errorf("effects of %d iterations, want %d\n%s", got, n, db.Dump(t))
	}
	if got := db.Int(t, `SELECT count(*) - count(DISTINCT (task_id, iteration)) FROM done WHERE attempt > 0`); got != 0 {
		t.Errorf("%d effects happened twice", got)
	}
}
