package relay_test

import (
	"testing"
)

// A relay that lost the connection of its journal forgets the run through another one. The lost one
// may commit its row after that. The row goes when its task is gone, even if its relay lives.
func TestTheReaperForgetsRunsWhoseTasksAreGone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	l := newLoops(resting(t, db, idle(), &records{}), "")
	defer l.Close()
	if err := l.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'other', 1, now() + interval '1 hour', '{}')`, liveRelay)
	db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE
		SELECT n, 'TX' FROM generate_series(1, 3) n`)
	// Tasks 1 to 3 are there, 4 to 6 are gone, each with a run of this relay, of another one, of a dead one.
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id)
		SELECT n, gen_random_uuid(), CASE n % 3 WHEN 0 THEN (SELECT relay_id FROM outbox.relay WHERE relay_id <> $1)
			WHEN 1 THEN $1 ELSE $2 END FROM generate_series(1, 6) n`, liveRelay, deadRelay)
	l.done(t, "reap")
	db.want(t, "1 2 3", "the journal has runs of tasks", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.running`)
}
