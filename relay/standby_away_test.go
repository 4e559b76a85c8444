package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// While commits wait for a synchronous standby that is away, a relay beats, polls and keeps house:
// nothing of that waits for the standby.
func TestLivenessDoesNotWaitForAStandby(t *testing.T) {
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
	if err := l.Heart.Beat(ctx); err != nil {
		t.Errorf("beat: %v", err)
	}
	for _, job := range []string{"take over", "check rows", "hear", "give tokens back", "store limits", "reap",
		"report unhandled types", "sweep keys", "maintain"} {
		l.done(t, job)
	}
	if err := l.Poll(ctx); err != nil {
		t.Errorf("poll: %v", err)
	}
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
