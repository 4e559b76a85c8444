package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// slowSQL makes functions and operators that the relay's statements use stop, while the test holds
// a lock, between what the statement has read and what it will do with it. They are found first
// with search_path slow.
const slowSQL = `
CREATE SCHEMA slow;
CREATE FUNCTION slow.pause() RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_catalog.pg_advisory_lock_shared(8), pg_catalog.pg_advisory_unlock_shared(8); END $$;
CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM slow.pause(); RETURN
pg_catalog.clock_timestamp(); END $$;
CREATE FUNCTION slow.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN PERFORM slow.pause(); RETURN
pg_catalog.now(); END $$;
CREATE FUNCTION slow.same(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM slow.pause(); RETURN
pg_catalog.uuid_eq($1, $2); END $$;
CREATE OPERATOR slow.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = slow.same);
CREATE FUNCTION slow.same(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM slow.pause(); RETURN
pg_catalog.int8eq($1, $2); END $$;
CREATE OPERATOR slow.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = slow.same)`

const (
	deadRelay = "dddddddd-0000-4000-8000-000000000000"
	liveRelay = "eeeeeeee-0000-4000-8000-000000000000"
	newRelay  = "ffffffff-0000-4000-8000-000000000000"
	someToken = "dddddddd-0000-4000-8000-00000000000d"
)

// again is another relay that leases the task after it was let go: what every one of these
// statements must not disturb.
const again = `UPDATE outbox.task SET relay_id = 'eeeeeeee-0000-4000-8000-000000000000',
	lease_token = 'eeeeeeee-0000-4000-8000-00000000000e', leased_until = NULL`

// F8: a row changes after a maintenance statement has read it and before it acts on it. It does
// what the new row asks for.
func TestMaintenanceActsOnRowsAsTheyAre(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	leasedBy := func(relayID, until string) string {
		return `INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token, leased_until)
			VALUES ('LEASED', 'leased', 1, '` + relayID + `', '` + someToken + `', ` + until + `)`
	}
	const completed = `DELETE FROM outbox.task`
	const rows = `SELECT json_build_array((SELECT json_agg(t) FROM outbox.task t), (SELECT json_agg(r)
		FROM outbox.running r), (SELECT json_agg(l) FROM outbox.relay l),
		(SELECT json_agg(k) FROM outbox.unique_key k))`
	ids := func(text []string) []any { return []any{pq.Array(text)} }
	for _, c := range []struct {
		name   string
		setup  string
		steps  []string             // statements of statements, in one transaction
		args   []any                // of the first
		next   func([]string) []any // arguments of the next, from what the one before returned
		change map[string]string    // by another session, while the first is under way
	}{
		{"take over", leasedBy(deadRelay, "NULL"), []string{"take over"}, []any{pq.Array([]string{deadRelay})}, nil,
			map[string]string{
				"completed": completed, "leased again": again, "failed": `UPDATE outbox.task
				SET state = 'scheduled', relay_id = NULL, lease_token = NULL`}},
		{"dead relays", leasedBy(deadRelay, "NULL"), []string{"dead relays", "take over"}, []any{liveRelay}, ids,
			map[string]string{
				"revived": `UPDATE outbox.relay SET alive_until = now() + interval '5 minutes'`}},
		{"leases end", leasedBy(liveRelay, "now() - interval '1 second'"), []string{"leases end"}, nil, nil, map[string]string{
			"completed": completed, "leased again": again, "extended": `UPDATE outbox.task
				SET leased_until = now() + interval '1 hour'`}},
		{"stranded", leasedBy(newRelay, "NULL"), []string{"stranded", "take stranded"}, nil, ids, map[string]string{
			"completed": completed, "leased again": again,
			"the relay beats": `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('` + newRelay +
				`', 'h', 1, now() + interval '5 minutes', '{}')`,
			// Its lease and its row are both younger than what the statement sees of the table of
			// relays.
			"leased by a new relay": `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
				VALUES ('aaaaaaaa-0000-4000-8000-000000000000', 'h', 1, now() + interval '5 minutes', '{}');
				UPDATE outbox.task SET relay_id = 'aaaaaaaa-0000-4000-8000-000000000000',
				lease_token = 'eeeeeeee-0000-4000-8000-00000000000e'`}},
		{"promote scheduled", `INSERT INTO outbox.task (task_type, state, run_at)
			VALUES ('LEASED', 'scheduled', now() - interval '1 second')`,
			[]string{"promote scheduled"}, []any{"LEASED", 1000}, nil, map[string]string{
				"deleted": completed, "leased": `UPDATE outbox.task SET state = 'leased', relay_id = '` + liveRelay +
					`', lease_token = '` + someToken + `'`,
				"put off": `UPDATE outbox.task SET run_at = now() + interval '1 hour'`}},
		{"reap runs", `INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1000000, '` + someToken + `', '` +
			deadRelay + `')`,
			[]string{"reap runs"}, nil, nil, map[string]string{
				// The old run may be reaped; the task's new run must stay.
				"the task is back and runs": `DELETE FROM outbox.running; INSERT INTO outbox.task (task_id,
					task_type) OVERRIDING SYSTEM VALUE VALUES (1000000, 'TX');
					INSERT INTO outbox.running (task_id, token, relay_id)
					VALUES (1000000, 'eeeeeeee-0000-4000-8000-00000000000e', '` + liveRelay + `')`}},
		{"reap relays", `UPDATE outbox.relay SET alive_until = now() - interval '2 hours',
			taken_over_at = now() - interval '2 hours' WHERE relay_id = '` + deadRelay + `'`,
			[]string{"reap relays"}, []any{liveRelay}, nil, map[string]string{
				"the relay beats": `UPDATE outbox.relay SET alive_until = now() + interval '5 minutes'`}},
		{"sweep keys", `INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('TX', 'k', 1000000);
			INSERT INTO outbox.task (task_type) VALUES ('TX')`, // for slow's operator to be called
			[]string{"lock keys", "delete keys"}, []any{"", "", "TX", "z", 1000}, ids, map[string]string{
				"a new task takes the key": `INSERT INTO outbox.task (task_type, unique_key) VALUES ('TX', 'k')`}},
	} {
		db := newDatabase(t)
		db.Do(t, slowSQL)
		c.change["nothing changes"] = `SELECT 1`
		for change, statement := range c.change {
			t.Run(c.name+" while "+change, func(t *testing.T) {
				db.Do(t, emptyAll+dead(deadRelay, "-1 second")+dead(liveRelay, "1 hour"))
				db.Do(t, c.setup)
				open := hold(t, db, `SELECT pg_advisory_xact_lock(8)`)
				slow, ended := newActor(t, db), make(chan error, 1)
				go func() { ended <- maintain(slow, c.steps, c.args, c.next) }()
				eventually(t, 10*time.Second, "the statement is under way", func() bool {
					if len(ended) > 0 {
						t.Fatal("it did not wait: ", <-ended)
					}
					return db.waitsAtAGate(t)
				})
				db.Do(t, statement)
				before := db.Text(t, rows)
				open()
				must(<-ended)
				if after := db.Text(t, rows); (after == before) == (change == "nothing changes") {
					t.Errorf("the rows were %s and are %s", before, after)
				}
			})
		}
		db.Do(t, emptyAll)
	}
}

// maintain runs the statements in one transaction, with slow's functions and operators where there
// are such.
func maintain(a *actor, steps []string, args []any, next func([]string) []any) error {
	if _, err := a.exec(`SET search_path = slow, pg_catalog`); err != nil {
		return err
	}
	if err := a.begin(); err != nil {
		return err
	}
	for _, name := range steps {
		found, err := a.query(statements[name], args...)
		if err != nil {
			return err
		}
		if next != nil {
			args = next(found)
		}
	}
	return a.commit()
}

func TestHeadsArePromotedAfterAllTablesWereEmptied(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	db.Do(t, `TRUNCATE outbox.headless_key, outbox.promote_lock`)
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, payload) SELECT 'ORDERED_TX', 'k', '{}'
		FROM generate_series(1, 5)`)
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.InOrder(t, 5)
}

// What cannot be done is logged once, and the rest goes on.
func TestARelayWithoutARightGoesOn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.cancel RENAME TO elsewhere; ALTER TABLE outbox.schedule RENAME TO away;
		INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('T', 'k', 1)`)
	r := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly)}))
	eventually(t, 30*time.Second, "Health names both", func() bool {
		err := r.Health()
		return errors.Is(err, relay.ErrRefused) && containsAll(err.Error(), "table outbox.cancel", "table outbox.schedule")
	})
	db.becomes(t, 20*time.Second, 0, "keys are swept", `SELECT count(*) FROM outbox.unique_key`)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 30*time.Second)
	db.Do(t, `ALTER TABLE outbox.away RENAME TO schedule`)
	db.becomes(t, 30*time.Second, 1, "the schedule is registered", `SELECT count(*) FROM outbox.schedule`)
	r.Stop()
	r.Log.Want(t, 2, "PostgreSQL refuses a part of the relay's work, which")
	db.Do(t, `ALTER TABLE outbox.elsewhere RENAME TO cancel`)
}

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
	noErr(t, l.Poll(t.Context()))
	const ready = `SELECT string_agg(payload ->> 'n', ' ' ORDER BY task_id) FROM outbox.task WHERE state = 'ready'`
	db.want(t, "2 3", "promoted", ready)
}

// While commits wait for a synchronous standby that is away, a relay beats, polls and keeps house:
// nothing of that waits for the standby.
func TestLivenessDoesNotWaitForAStandby(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := adopt(t, pgtest.Local(t, map[string]string{"synchronous_commit": "on"}).URL())
	reg := handlers.New()
	handlers.Tx(reg, outbox.NewTaskType[payload]("A"), nothing, handlers.Rate(100, time.Hour))
	l := newLoops(resting(t, db, reg, &records{}), "fold")
	defer l.Close()
	db.Do(t, dead(deadRelay, "-1 day")+`
		INSERT INTO outbox.task (task_type, payload) SELECT 'A', '1' FROM generate_series(1, 3);
		INSERT INTO outbox.task (task_type, run_at, state) VALUES ('A', now() - interval '1 second', 'scheduled');
		INSERT INTO outbox.task (task_type, ordering_key) VALUES ('A', 'k');
		UPDATE outbox.task SET state = 'leased', relay_id = '`+deadRelay+`', lease_token = '`+deadRelay+`',
			leased_until = now() + interval '1 hour' WHERE task_id = 1;
		INSERT INTO outbox.cancel (task_id) VALUES (2);
		INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('A', 'gone', 1000);
		INSERT INTO outbox.running (task_id, token, relay_id) VALUES (1000, '`+deadRelay+`', '`+deadRelay+`')`)
	commitsWait(t, db)
	ctx := t.Context()
	noErr(t, l.Heart.Beat(ctx))
	for _, job := range []string{"take over", "check rows", "hear", "give tokens back", "store limits", "reap",
		"report unhandled types", "sweep keys", "maintain"} {
		l.done(t, job)
	}
	noErr(t, l.Poll(ctx))
	for what, query := range map[string]string{
		"the lease of a dead relay is taken over":  `SELECT count(*) FROM outbox.task WHERE task_id = 1 AND lease_token IS NULL`,
		"the canceled task is removed":             `SELECT 1 - count(*) FROM outbox.task WHERE task_id = 2`,
		"the run of a task that is gone is reaped": `SELECT 1 - count(*) FROM outbox.running`,
		"the key of a task that is gone is swept":  `SELECT 1 - count(*) FROM outbox.unique_key`,
		"what is due and what is first is ready":   `SELECT count(*) - 2 FROM outbox.task WHERE task_id > 1 AND state = 'ready'`,
	} {
		if db.Int(t, query) != 1 {
			t.Errorf("not so: %s", what)
		}
	}
	l.Heart.SignOff()
	if n := db.Int(t, `SELECT count(*) FROM outbox.relay WHERE pid <> 1`); n != 0 {
		t.Error("the relay did not sign off")
	}
}

// commitsWait has each commit that is not asynchronous wait for a standby that never comes, until the
// end of the test.
func commitsWait(t *testing.T, db *database) {
	t.Helper()
	set := func(names string) {
		db.Do(t, `ALTER SYSTEM SET synchronous_standby_names = '`+names+`'`)
		db.Do(t, `SELECT pg_reload_conf()`)
	}
	db.Do(t, `CREATE TABLE waits (n int)`)
	set("away")
	t.Cleanup(func() { set("") })
	eventually(t, time.Minute, "a commit that waits", func() bool { // once the checkpointer has read the setting
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = db.ExecContext(ctx, `INSERT INTO waits VALUES (1)`)
		return ctx.Err() != nil
	})
}
