package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Tasks of other types run while what is due, and heads of ordering keys, are being promoted,
// however long that takes.
func TestTasksRunBesideAPromotion(t *testing.T) {
	t.Parallel()
	const n = 50
	for name, c := range map[string]struct{ hold, enqueue string }{
		"of heads": {`LOCK TABLE outbox.headless_key IN SHARE MODE`,
			`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'ORDERED_TX', n FROM generate_series(1, 50) n`},
		"of due tasks": {`SELECT pg_advisory_xact_lock(57)`,
			`INSERT INTO outbox.task (task_type, state) SELECT 'ORDERED_TX', 'scheduled' FROM generate_series(1, 50) n`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newOrdered(t)
			db.Do(t, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN PERFORM pg_advisory_xact_lock_shared(57); RETURN NEW; END $$;
				CREATE TRIGGER slow BEFORE UPDATE ON outbox.task FOR EACH ROW
				WHEN (OLD.state = 'scheduled') EXECUTE FUNCTION slow()`)
			db.Do(t, c.enqueue)
			release := db.Hold(t, c.hold)
			run(t, db, relaytest.Ordered(), relay.Config{Workers: 3})
			relaytest.Eventually(t, time.Minute, "a promotion waits", func() bool {
				return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock' AND query LIKE '/* outbox: promote%'`) == 1
			})
			db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'ORDERED_LEASED' FROM generate_series(1, $1) n`, n)
			relaytest.Eventually(t, time.Minute, "all tasks of the other type run", func() bool {
				return db.Int(t, `SELECT count(*) FROM run`) == n
			})
			db.want(t, n, "the others wait", `SELECT count(*) FROM outbox.task`)
			release()
			db.Emptied(t, time.Minute)
		})
	}
}
