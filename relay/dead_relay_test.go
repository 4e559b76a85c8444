package relay_test

import "testing"

// A relay without leases, say of Tx handlers only, is logged too, once in the fleet. It stays in the
// list for an hour after the takeover, however long ago it died.
func TestADeadRelayIsLoggedOnceAndListedForAnHour(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES
		('`+deadRelay+`', 'busy', 1, now() - interval '5 hours', '{}'), ('`+newRelay+`', 'idle', 2, now() - interval '5 hours', '{}')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, lease_token, relay_id, timeline)
		SELECT 'LEASED', 'leased', 1, '`+someToken+`', '`+deadRelay+`',
		       CASE n WHEN 1 THEN '[{"event": "failed"}, {"event": "lost"}]' WHEN 2 THEN '[{"event": "lost"}, {"event": "failed"}]' END::jsonb
		  FROM generate_series(1, 3) n`)
	first, second := newLoops(resting(t, db, all(), log), ""), newLoops(resting(t, db, all(), log), "")
	defer first.Close()
	defer second.Close()
	for _, l := range []*loops{first, second, first} {
		l.done(t, "take over")
		l.done(t, "reap")
	}
	const dead = "a relay is dead; its leased tasks are ready again"
	log.Want(t, 2, dead)
	log.Want(t, 1, "host=busy pid=1 tasks=3 isolated=1")
	log.Want(t, 1, "host=idle pid=2 tasks=0 isolated=0")
	db.wantRows(t, 3, `outbox.task WHERE state = 'ready'`)
	db.wantRows(t, 2, `outbox.relay WHERE alive_until < now()`)

	// The hour begins again where one more of its tasks is taken over.
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = taken_over_at - interval '61 minutes'`)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, lease_token, relay_id) VALUES ('LEASED', 'leased', 1, '`+someToken+`', '`+deadRelay+`')`)
	first.done(t, "reap")
	first.done(t, "take over")
	first.done(t, "reap")
	db.wantText(t, "busy", `SELECT string_agg(host, ' ') FROM outbox.relay WHERE alive_until < now()`)
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = taken_over_at - interval '61 minutes'`)
	first.done(t, "reap")
	db.wantRows(t, 0, `outbox.relay WHERE alive_until < now()`)
}

func TestAHeartbeatEndsItsTakeover(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := newLoops(resting(t, db, all(), &records{}), "")
	defer l.Close()
	db.Do(t, `UPDATE outbox.relay SET taken_over_at = now()`)
	if err := l.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.wantRows(t, 1, `outbox.relay WHERE taken_over_at IS NULL`)
}
