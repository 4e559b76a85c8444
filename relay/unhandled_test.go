package relay_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

const unhandled = "no relay has a handler for this task type"

// untouched checks that the n tasks of a type are as they were enqueued.
func untouched(t testing.TB, db *database, taskType string, n int) {
	t.Helper()
	db.want(t, n, "untouched tasks of type "+taskType, `SELECT count(*) FROM outbox.task WHERE task_type = $1 AND attempt = 0 AND attempted_at IS NULL
		AND relay_id IS NULL AND last_error IS NULL AND state = CASE WHEN run_at > created_at THEN 'scheduled' ELSE 'ready' END`, taskType)
}

// F11.
func TestATypeWithoutAHandlerIsLeftAloneAndReportedAtTheStart(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	db.Enqueue(t, "MANY", 1500)
	db.Enqueue(t, "FEW", 3)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'LATER', now() + interval '1 day' FROM generate_series(1, 5)`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) SELECT 'MANY', now() + interval '1 day' FROM generate_series(1, 5)`)
	handlers.Tx(reg, typeTx, txEffect)
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	eventually(t, 10*time.Second, "three types are reported", func() bool { return r.Log.Count(unhandled) == 3 })
	for _, want := range []string{"task_type=MANY tasks=1000", "task_type=FEW tasks=3", "task_type=LATER tasks=5"} {
		if !strings.Contains(r.Log.String(), want) {
			t.Errorf("no record has %s", want)
		}
	}
	db.Enqueue(t, "TX", 100)
	db.becomes(t, 20*time.Second, 0, "the relay's own type is worked on", `SELECT count(*) FROM outbox.task WHERE task_type = 'TX'`)
	r.Stop()
	untouched(t, db, "MANY", 1505)
	untouched(t, db, "FEW", 3)
	untouched(t, db, "LATER", 5)
	r.Log.Want(t, 3, unhandled)
	db.want(t, 0, "dead letters", `SELECT count(*) FROM outbox.dead_task`)
}

func TestATypeWithoutAHandlerIsReportedAtMostOnceAMinute(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	db.Enqueue(t, "UNKNOWN", 1)
	l := newLoops(resting(t, db, idle(), log), "")
	defer l.Close()
	rest := l.done(t, "report unhandled types")
	if n := log.Count(unhandled); n != 1 || rest != time.Minute {
		t.Errorf("%d reports, and the next one after %v; want one, and the next after a minute", n, rest)
	}
}

func TestATypeIsNotReportedWhileALivingRelayHandlesIt(t *testing.T) {
	t.Parallel()
	db, log := newDatabase(t), &records{}
	l := newLoops(resting(t, db, idle(), log), "")
	defer l.Close()
	db.Enqueue(t, "LEASED", 1)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ($1, 'h', 1, now() + interval '1 hour', '{LEASED}')`, liveRelay)
	for i, alive := range []string{"1 hour", "-1 second"} {
		db.Do(t, `UPDATE outbox.relay SET alive_until = now() + $2::interval WHERE relay_id = $1`, liveRelay, alive)
		l.done(t, "report unhandled types")
		log.Want(t, i, unhandled)
	}
	db.Do(t, `TRUNCATE outbox.task`)
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

// F11: two deployments that know different types are restarted in turn, again and again.
func TestRelaysWithDisjointHandlersBurnNoAttemptOfEachOthersTasks(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	start := func(kind string) *running {
		reg := handlers.New()
		switch kind {
		case "TX":
			handlers.Tx(reg, typeTx, txEffect)
		case "LEASED":
			handlers.Leased(reg, typeLeased, leasedEffect)
		}
		return run(t, open(t, db.URL), reg, relay.Config{PollInterval: 50 * time.Millisecond})
	}
	kinds := []string{"TX", "LEASED"}
	relays := []*running{start("TX"), start("LEASED")}
	for round := range 4 {
		i := round % 2
		db.Enqueue(t, kinds[0], 25)
		db.Enqueue(t, kinds[1], 25)
		relays[i].Stop()
		db.becomes(t, 20*time.Second, 0, "the other relay does all of its own", `SELECT count(*) FROM outbox.task WHERE task_type = $1`, kinds[1-i])
		relays[i] = start(kinds[i])
	}
	db.Emptied(t, 30*time.Second)
	db.want(t, 200, "tasks were done in their first attempt", `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`)
	db.want(t, 0, "dead letters and burned attempts", `SELECT (SELECT count(*) FROM outbox.dead_task) + (SELECT count(*) FROM effect WHERE attempt > 1)`)
}

// F9: sequence order is not commit order.
func TestATaskThatCommitsAfterThousandsOfHigherOnesIsNotSkipped(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	commit := uncommitted(t, db, `INSERT INTO outbox.task (task_type) SELECT unnest('{TX,BATCH,LEASED}'::text[])`)
	run(t, open(t, db.URL), all(), relay.Config{ListenDSN: db.URL})
	db.Enqueue(t, "BATCH", 2600)
	db.Enqueue(t, "TX", 200)
	db.Enqueue(t, "LEASED", 200)
	db.Emptied(t, 60*time.Second)
	commit()
	db.becomes(t, 20*time.Second, 3003, "those that committed last are done too", `SELECT count(DISTINCT task_id) FROM effect`)
}
