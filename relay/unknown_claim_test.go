package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/proxy"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// F2: the commit of a claim succeeds after the relay has lost sight of it. Its lease would last as
// long as its relay, which has no handler for it.
func testLeaseCommittedUnseen(t *testing.T) {
	for name, terminate := range map[string]bool{"committed": false, "rolled back": true} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM
				pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
				CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON outbox.task DEFERRABLE INITIALLY DEFERRED
				  FOR EACH ROW WHEN (NEW.state = 'leased') EXECUTE FUNCTION wait()`)
			open := hold(t, db, `SELECT pg_advisory_xact_lock(1)`)
			// A task that is known to the relay, and one that is a suspect.
			const tasks = 4
			db.Enqueue(t, "LEASED", tasks)
			db.Do(t, `UPDATE outbox.task SET relay_id = '00000000-0000-4000-8000-000000000000', attempt = 1 WHERE task_id = 2`)
			cutter, far := db.proxied(t, relaytest.DriverName())
			cutter.Set(&proxy.Trap{Catches: proxy.Commit("outbox: lease"), How: proxy.LoseBoth})
			run(t, far, leased(leasedEffect, handlers.Timeout(-1)),
				relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond})
			const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
				AND wait_event = 'advisory'`
			db.becomes(t, 10*time.Second, 1, "a claim is being committed", waiting)
			if terminate {
				db.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event = 'advisory'`)
			} else {
				const alive = `SELECT (extract(epoch FROM alive_until) * 1000)::bigint FROM outbox.relay`
				before := db.Int(t, alive)
				eventually(t, 20*time.Second, "the relay works again", func() bool { return db.Int(t, alive) > before })
				if db.Int(t, waiting) != 1 {
					t.Error("the commit has ended already: the test shows nothing")
				}
			}
			open()
			db.Emptied(t, 15*time.Second)
			db.OnceEach(t, tasks)
			db.want(t, "1 2 1 1", "done in attempts", `SELECT string_agg(attempt::text, ' ' ORDER BY task_id) FROM effect`)
		})
	}
}
