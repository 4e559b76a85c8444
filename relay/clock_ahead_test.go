package relay_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox/relay"
)

// What was written while the server's clock was a day ahead for a moment stops no upkeep: the leases
// of a relay that died then are taken over, and maintenance goes on.
func TestTimesOfAClockThatWasAheadAreNotBelieved(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('`+deadRelay+`', 'h', 1, now() + interval '1 day', '{}')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, lease_token, relay_id, leased_until)
		VALUES ('LEASED', 'leased', 1, '`+someToken+`', '`+deadRelay+`', now() + interval '2 days')`)
	l := newLoops(resting(t, db, all(), log), "fold")
	defer l.Close()
	l.done(t, "take over")
	db.wantRows(t, 1, `outbox.task WHERE state = 'ready'`)
	db.wantRows(t, 1, `outbox.relay WHERE alive_until <= now() AND taken_over_at <= now()`)
	log.Want(t, 1, "a relay is dead; its leased tasks are ready again")

	l.done(t, "maintain") // adds its row
	db.Do(t, `UPDATE outbox.maintenance SET due_at = now() + interval '1 day'`)
	db.Do(t, `DELETE FROM outbox.task`)
	l.done(t, "maintain")
	db.wantRows(t, 0, `outbox.counter_log`)
	db.wantRows(t, 1, `outbox.maintenance WHERE due_at < now() + interval '1 hour'`)
}

// A request for wake-ups that lies hours ahead is no request, and is withdrawn with the next one.
func TestAWakeUpRequestOfAClockThatWasAheadIsWithdrawn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `SELECT setval('outbox.wake', extract(epoch FROM now() + interval '1 day')::bigint)`)
	run(t, db, all(), relay.Config{ListenDSN: db.URL})
	db.becomes(t, 30*time.Second, 1, "relays ask for wake-ups of the next seconds", `SELECT count(*) FROM outbox.wake
		WHERE last_value BETWEEN 1 AND extract(epoch FROM now()) + 7200`)
}
