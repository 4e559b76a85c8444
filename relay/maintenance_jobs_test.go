package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Whatever of its upkeep hangs, a relay beats in time, and so it takes over from relays that do
// not.
func TestUpkeepThatHangsDelaysNoBeat(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	reg := handlers.New()
	handlers.Leased(reg, typeLeased, leasedEffect)
	registerTx(reg, outbox.NewTaskType[payload]("RATED"), func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil }, handlers.Rate(1, time.Hour))
	run(t, db, reg, relay.Config{})
	db.becomes(t, 10*time.Second, 1, "it beats", `SELECT count(*) FROM outbox.relay`)
	db.Do(t, `INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES ('`+deadRelay+`', 'h', 1, now() - interval '1 minute', '{}');
		INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token) VALUES ('LEASED', 'leased', 1, '`+deadRelay+`', '`+someToken+`')`)
	hold(t, db, `LOCK TABLE outbox.cancel, outbox.unique_key, outbox.running, outbox.maintenance, outbox.bucket IN ACCESS EXCLUSIVE MODE`)
	db.becomes(t, 40*time.Second, 0, "the dead relay's task is taken over", `SELECT count(*) FROM outbox.task WHERE relay_id = '`+deadRelay+`' AND state = 'leased'`)
}

// A job of maintenance that one relay is stuck in does not keep others from the other jobs.
func TestAStepThatIsStuckStopsNoOther(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.maintenance (job, due_at) VALUES ('fold', now() - interval '1 hour');
		INSERT INTO outbox.done_task (task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
		VALUES (1, now(), now(), now(), now() - interval '1 second', 0, 1, 'GONE', '{}')`)
	hold(t, db, `SELECT FROM outbox.maintenance FOR UPDATE`)
	run(t, db, all(), relay.Config{})
	db.becomes(t, 20*time.Second, 0, "the history is purged", `SELECT count(*) FROM outbox.done_task`)
}

func TestHeadsArePromotedAfterAllTablesWereEmptied(t *testing.T) {
	t.Parallel()
	db := newOrdered(t)
	db.Do(t, `TRUNCATE outbox.headless_key, outbox.promote_lock`)
	db.Do(t, `INSERT INTO outbox.task (task_type, ordering_key, payload) SELECT 'ORDERED_TX', 'k', '{}' FROM generate_series(1, 5)`)
	once(t, db, relaytest.Ordered(), relay.Config{})
	db.InOrder(t, 5)
}

// Of many relays one does a job when it is due; one that failed or panicked the server's way is
// done again later, and the tables show nothing of it.
func TestOneRelayOfManyDoesAJobOfMaintenanceWhenItIsDue(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE done (at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	var at, most atomic.Int32
	for range 4 {
		r := prepare(t, db, idle(), relay.Config{})
		r.WithMaintenance("test", func(ctx context.Context, tx *sql.Tx) (time.Duration, error) {
			most.Store(max(most.Load(), at.Add(1)))
			defer at.Add(-1)
			_, err := tx.ExecContext(ctx, `INSERT INTO done DEFAULT VALUES`)
			return 1500 * time.Millisecond, err
		})
		r.Start()
	}
	eventually(t, 30*time.Second, "the job was done three times", func() bool { return db.Int(t, `SELECT count(*) FROM done`) >= 3 })
	db.want(t, 0, "times it was done before it was due", `SELECT count(*) FROM (SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM done) g WHERE gap < interval '1500 ms'`)
	if most.Load() > 1 {
		t.Errorf("%d relays did it at once", most.Load())
	}
}

func TestAJobOfMaintenanceThatFailsChangesNothingAndStopsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE done (at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	r := prepare(t, db, idle(), relay.Config{})
	var called atomic.Int32
	r.WithMaintenance("test", func(ctx context.Context, tx *sql.Tx) (time.Duration, error) {
		called.Add(1)
		_, err := tx.ExecContext(ctx, `INSERT INTO done DEFAULT VALUES`)
		_, slow := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return 0, errors.Join(err, slow)
	})
	r.Start()
	db.becomes(t, 30*time.Second, 1, "it is put off", `SELECT count(*) FROM outbox.maintenance WHERE job = 'test' AND due_at > clock_timestamp()`)
	if n := db.Int(t, `SELECT count(*) FROM done`); n != 0 || called.Load() == 0 {
		t.Errorf("it was called %d times and left %d rows", called.Load(), n)
	}
	db.want(t, 1, "the relay's heartbeat suffers", `SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '3 seconds'`)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 10*time.Second)
}

// What cannot be done is logged once, and the rest goes on.
func TestARelayWithoutARightGoesOn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `ALTER TABLE outbox.cancel RENAME TO elsewhere; ALTER TABLE outbox.schedule RENAME TO away;
		INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('T', 'k', 1)`)
	r := run(t, db, idle(), scheduled(relay.Schedule{Name: "tick", Timing: relay.Every(yearly)}))
	eventually(t, 30*time.Second, "a warning, and a second failure", func() bool {
		return r.Log.Count("PostgreSQL refuses a job of the relay's upkeep") == 1 && r.Log.Count("add the schedule") >= 2
	})
	db.becomes(t, 20*time.Second, 0, "keys are swept", `SELECT count(*) FROM outbox.unique_key`)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 30*time.Second)
	db.Do(t, `ALTER TABLE outbox.away RENAME TO schedule`)
	db.becomes(t, 30*time.Second, 1, "the schedule is registered", `SELECT count(*) FROM outbox.schedule`)
	r.Stop()
	r.Log.Want(t, 1, "PostgreSQL refuses a job of the relay's upkeep")
	r.Log.Want(t, 1, "schedules cannot be fired")
	db.Do(t, `ALTER TABLE outbox.elsewhere RENAME TO cancel`)
}
