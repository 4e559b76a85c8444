package relay_test

import (
	"testing"
)

// impatient is another pool of the database: a statement that waits for a lock fails after 2 s.
func impatient(t testing.TB, db *database) *database {
	t.Helper()
	db.Do(t, `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET lock_timeout = ''2s''', current_database());
	END $$`)
	return direct(t, db.URL)
}

// takeOver lets a relay take over once. It returns the tasks that are not leased then, with their marks.
func takeOver(t *testing.T, db *database) string {
	t.Helper()
	l := newLoops(resting(t, impatient(t, db), all(), &records{}), "")
	defer l.Close()
	l.done(t, "take over")
	return db.Text(t, `
		SELECT string_agg(payload ->> 'n' || COALESCE(' of ' || relay_id, ''), ', ' ORDER BY task_id)
		FROM outbox.task WHERE lease_token IS NULL AND leased_until IS NULL`)
}

// leasesToTakeOver leaves six: two of a dead relay, two of one without a row, and two that ran out.
func leasesToTakeOver(t *testing.T, db *database) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES
		('`+deadRelay+`', 'h', 1, now() - interval '1 second', '{}'),
		('`+liveRelay+`', 'h', 2, now() + interval '5 minutes', '{}')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, state, attempt, lease_token, relay_id, leased_until)
		SELECT 'LEASED', jsonb_build_object('n', n), 'leased', 1, '`+someToken+`',
		       CASE WHEN n <= 2 THEN '`+deadRelay+`'
		            WHEN n <= 4 THEN '`+newRelay+`' ELSE '`+liveRelay+`' END::uuid,
		       CASE WHEN n IN (5, 6) THEN now() - interval '1 second' END
		  FROM generate_series(1, 7) n`)
}

// A leased task that is locked is about to be completed. It is left alone, and the others are not.
// The mark is the id of the relay that died: such a task runs alone the next time, as it may be
// what killed the process. A lease that ran out says nothing of the kind.
func TestATakeoverWaitsForNoRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	leasesToTakeOver(t, db)
	hold(t, db, `SELECT FROM outbox.task WHERE payload ->> 'n' IN ('1', '3', '5') FOR UPDATE`)
	if got, want := takeOver(t, db), "2 of "+deadRelay+", 4 of "+newRelay+", 6"; got != want {
		t.Errorf("taken over are %s\nwant %s", got, want)
	}
}

// A scheduled task is locked by a transaction that cancels it, or runs it now.
func TestPromotingWaitsForNoRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, state)
		SELECT 'TX', jsonb_build_object('n', n), 'scheduled' FROM generate_series(1, 3) n`)
	hold(t, db, `SELECT outbox.cancel_task(task_id) FROM outbox.task WHERE payload ->> 'n' = '1'`)
	l := newLoops(resting(t, impatient(t, db), all(), &records{}), "")
	defer l.Close()
	if err := l.Poll(t.Context()); err != nil {
		t.Errorf("poll: %v", err)
	}
	const ready = `SELECT string_agg(payload ->> 'n', ' ' ORDER BY task_id) FROM outbox.task WHERE state = 'ready'`
	db.want(t, "2 3", "promoted", ready)
}
