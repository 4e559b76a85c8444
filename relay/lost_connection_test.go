package relay_test

import (
	"context"
	"database/sql"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// named is a pool of its own on the same database, whose backends have the given application_name.
func (db *database) named(t testing.TB, name string) *database {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("application_name", name)
	u.RawQuery = query.Encode()
	return open(t, u.String())
}

// C4, I6.
func TestATerminatedBackendCostsNoAttempt(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	slowly := func(ctx context.Context, tx outbox.Tx, write func() error) error {
		if err := write(); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(0.005)`)
		return err
	}
	reg := handlers.New()
	soon := handlers.Backoff(constant(10 * time.Millisecond))
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return slowly(ctx, tx, func() error { return txEffect(ctx, tx, task) })
	}, soon)
	handlers.Batch(reg, typeBatch, 5, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
		return slowly(ctx, tx, func() error { return batchEffect(ctx, tx, tasks) })
	}, soon)
	rounds, each := relaytest.Times(10, 30), 4
	relayDB := db.named(t, "relay")
	run(t, relayDB, reg, relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond})
	n := 0
	for range rounds {
		db.Enqueue(t, "TX", each)
		db.Enqueue(t, "BATCH", each)
		n += 2 * each
		// A backend with a transaction id is one that has claimed, wherever it is now: in its handler, in the
		// bookkeeping, or in its COMMIT.
		eventually(t, 20*time.Second, "a claiming backend is terminated", func() bool {
			return db.Int(t, `SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM (
				SELECT pid FROM pg_stat_activity WHERE application_name = 'relay' AND datname = current_database() AND backend_xid IS NOT NULL
				   AND query NOT LIKE '/* outbox: journal%' AND query NOT LIKE '/* outbox: heartbeat%' ORDER BY random() LIMIT 1) a) b`) > 0
		})
	}
	db.Emptied(t, 40*time.Second)
	db.OnceEach(t, n)
	if got := db.Int(t, `SELECT count(*) FROM effect WHERE attempt <> 1`); got != 0 {
		t.Errorf("%d tasks lost an attempt with a connection", got)
	}
}

// C15. The task's SQL kills its backend whenever it runs.
func TestATaskThatKillsItsBackendIsADeadLetterAfterTenLostConnections(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, taskType := range map[string]string{"Tx": "TX", "Batch": "BATCH"} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			var starts atomic.Int32
			kill := func(ctx context.Context, tx outbox.Tx, task *outbox.Task[payload]) error {
				if task.Payload.N >= 0 {
					return effect(ctx, tx, task.ID, task.Attempt)
				}
				starts.Add(1)
				_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
				return err
			}
			reg := handlers.New()
			soon, three := handlers.Backoff(constant(10*time.Millisecond)), handlers.MaxAttempts(3)
			handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
				return kill(ctx, tx, task)
			}, soon, three)
			handlers.Batch(reg, typeBatch, 20, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					if err := kill(ctx, tx, task); err != nil {
						return err
					}
				}
				return nil
			}, soon, three)
			const others = 60
			db.Do(t, `INSERT INTO outbox.task (task_type, payload)
				SELECT $1, jsonb_build_object('N', CASE n WHEN 10 THEN -1 ELSE n END) FROM generate_series(1, $2::int + 1) n`, taskType, others)
			run(t, db, reg, relay.Config{Workers: 4, PollInterval: 100 * time.Millisecond})
			db.Emptied(t, 40*time.Second)
			if got := starts.Load(); got != 10 {
				t.Errorf("the task was started %d times, want 10", got)
			}
			if got := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE reason = 'lost_connections' AND attempt = 0 AND last_error <> ''`); got != 1 {
				t.Errorf("no dead letter with 10 lost connections and no attempt\n%s", db.Dump(t))
			}
			if got := db.Int(t, `SELECT count(DISTINCT task_id) FROM effect WHERE attempt = 1`); got != others || db.Int(t, `SELECT count(*) FROM effect`) != got {
				t.Errorf("%d other tasks have an effect in their first attempt, want one each of %d", got, others)
			}
		})
	}
}

// The connection of task.Complete breaks before its function is called.
func TestACompletionWhoseConnectionBreaksIsNotAnAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		  IF (SELECT count(*) FROM broken) < 3 THEN PERFORM nextval('deaths'); PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
		  RETURN OLD;
		END $$;
		CREATE TABLE broken (error text);
		CREATE SEQUENCE deaths;
		CREATE TRIGGER die BEFORE DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION die()`)
	reg := handlers.New()
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		err := leasedEffect(ctx, task)
		if err != nil {
			db.Do(t, `INSERT INTO broken VALUES ($1)`, err.Error())
		}
		return err
	}, handlers.MaxAttempts(2), handlers.Backoff(constant(10*time.Millisecond)))
	db.Enqueue(t, "LEASED", 1)
	run(t, db, reg, relay.Config{PollInterval: 100 * time.Millisecond})
	db.Emptied(t, 20*time.Second)
	db.OnceEach(t, 1)
	if got := db.Int(t, `SELECT count(*) FROM broken`); got != 3 || db.Int(t, `SELECT last_value FROM deaths`) != got {
		t.Errorf("%d broken connections, want 3: %s", got, db.Text(t, `SELECT json_agg(b) FROM broken b`))
	}
	if got := db.Int(t, `SELECT attempt FROM effect`); got != 1 {
		t.Errorf("completed in attempt %d, want 1", got)
	}
}
