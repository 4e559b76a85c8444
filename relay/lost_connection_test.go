package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// C4, F39, I6: backends of relays and handlers are terminated, and the relay's statements cancelled, at
// random. A backend with a transaction id is one that has claimed, wherever it is now: in its handler,
// in the bookkeeping, or in its COMMIT.
func TestATerminatedBackendCostsNoAttempt(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	// A cancelled statement of a handler is the handler's failure, and what ends a run or follows the probe
	// checks the constraints that it deferred. A cancellation is late, now and then, and meets that.
	const ofRelay = `query LIKE '/* outbox: %' AND query NOT LIKE '/* outbox: probe%' AND query NOT LIKE '/* outbox: end a claim%'`
	kills := []string{
		`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM s WHERE ` + ofRelay + ` ORDER BY random() LIMIT 1) v`,
		`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM s WHERE backend_xid IS NOT NULL
			AND query NOT LIKE '/* outbox: journal%' ORDER BY random() LIMIT 1) v`,
		`SELECT count(pg_cancel_backend(pid)) FROM (SELECT pid FROM s WHERE ` + ofRelay +
			` AND state = 'active' ORDER BY random() LIMIT 1) v`,
	}
	const sessions = `WITH s AS (SELECT * FROM pg_stat_activity WHERE datname = current_database()
		AND application_name = 'relay') `
	db := newDatabase(t)
	app := open(t, with(t, db.URL, "application_name", "relay"))
	log := &relaytest.Records{}
	run(t, app, everyKind(), relay.Config{Workers: 4, ListenDSN: app.URL, Logger: slog.New(slog.NewTextHandler(log, nil))})
	killer := direct(t, db.URL) // a pooler could give it a connection that it has just killed
	n := 0
	for range relaytest.Times(8, 20) {
		for i, kill := range kills {
			eventually(t, 20*time.Second, fmt.Sprint("kill ", i), func() bool {
				db.enqueueEach(t, 2)
				n += 2
				return killer.Int(t, sessions+kill) > 0
			})
		}
	}
	db.Emptied(t, 5*time.Minute)
	db.OnceEach(t, 2*n)
	late := 0
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "an attempt failed") && strings.Contains(line, "canceling statement due to user request") {
			late++
		}
	}
	db.want(t, late, "attempts that failed", `SELECT sum(attempt - 1) FROM effect`)
}

// The connection of task.Complete breaks before its function is called.
func TestACompletionWhoseConnectionBreaksIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM broken) < 3 THEN PERFORM nextval('deaths'); PERFORM
		  pg_terminate_backend(pg_backend_pid()); END IF;
		  RETURN OLD;
		END $$;
		CREATE TABLE broken (error text);
		CREATE SEQUENCE deaths;
		CREATE TRIGGER die BEFORE DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION die()`)
	reg := leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		err := leasedEffect(ctx, task)
		if err != nil {
			db.Do(t, `INSERT INTO broken VALUES ($1)`, err.Error())
		}
		return err
	}, handlers.MaxAttempts(2), handlers.Backoff(constant(10*time.Millisecond)))
	db.Enqueue(t, "LEASED", 1)
	run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
	db.want(t, "3 3", "broken connections and killed backends", `SELECT count(*) || ' ' || (SELECT last_value FROM deaths)
		FROM broken`)
	db.want(t, 1, "completed in attempt", `SELECT attempt FROM effect`)
}
