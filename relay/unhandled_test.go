package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

const unhandled = "no relay has a handler for this task type"

// untouched checks that the n tasks of a type are as they were enqueued.
func untouched(t testing.TB, db *database, taskType string, n int) {
	t.Helper()
	db.want(t, n, "untouched tasks of type "+taskType, `SELECT count(*) FROM outbox.task WHERE task_type = $1
		AND attempt = 0 AND attempted_at IS NULL
		AND relay_id IS NULL AND last_error IS NULL AND state = CASE
		WHEN run_at > created_at THEN 'scheduled' ELSE 'ready' END`, taskType)
}

// F11.
func TestATypeWithoutAHandlerIsLeftAloneAndReportedAtTheStart(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	db.Enqueue(t, "MANY", 1500)
	db.Enqueue(t, "FEW", 3)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'LATER', now() + interval '1 day'
		FROM generate_series(1, 5)`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'MANY', now() + interval '1 day'
		FROM generate_series(1, 5)`)
	registerTx(reg, typeTx, txEffect)
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "three types are reported", func() bool { return r.Log.Count(unhandled) == 3 })
	for _, want := range []string{"task_type=MANY tasks=1000", "task_type=FEW tasks=3", "task_type=LATER tasks=5"} {
		if !strings.Contains(r.Log.String(), want) {
			t.Errorf("no record has %s", want)
		}
	}
	db.Enqueue(t, "TX", 100)
	db.becomes(t, 20*time.Second, 0, "the relay's own type is worked on", `SELECT count(*) FROM outbox.task
		WHERE task_type = 'TX'`)
	r.Stop()
	untouched(t, db, "MANY", 1505)
	untouched(t, db, "FEW", 3)
	untouched(t, db, "LATER", 5)
	r.Log.Want(t, 3, unhandled)
	db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
}

// resting is a relay that does not run.
func resting(t testing.TB, db *database, reg *handlers.Registry, log *records) *relay.Relay {
	t.Helper()
	r, err := relay.New(db.DB, reg, relay.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestATypeIsReportedOnceAMinuteUnlessALivingRelayHandlesIt(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	l := newLoops(resting(t, db, idle(), log), "")
	defer l.Close()
	db.Enqueue(t, "LEASED", 1)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types)
		VALUES ($1, 'h', 1, now() + interval '1 hour', '{LEASED}')`, liveRelay)
	for i, alive := range []string{"1 hour", "-1 second"} {
		db.Do(t, `UPDATE outbox.relay SET alive_until = now() + $2::interval WHERE relay_id = $1`, liveRelay, alive)
		if rest := l.done(t, "report unhandled types"); rest != time.Minute {
			t.Errorf("the next report comes after %v, want a minute", rest)
		}
		log.Want(t, i, unhandled)
	}
}
