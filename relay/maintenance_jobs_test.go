package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// Of many relays one does a job when it is due; one that failed or panicked the server's way is done again later, and the tables
// show nothing of it.
func TestOneRelayOfManyDoesAJobOfMaintenanceWhenItIsDue(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE done (at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	reg := handlers.New()
	handlers.Tx(reg, typeTx, txEffect)
	var at, most atomic.Int32
	for range 4 {
		r := prepare(t, db, reg, relay.Config{})
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
	reg := handlers.New()
	handlers.Tx(reg, typeTx, txEffect)
	r := prepare(t, db, reg, relay.Config{})
	var called atomic.Int32
	r.WithMaintenance("test", func(ctx context.Context, tx *sql.Tx) (time.Duration, error) {
		called.Add(1)
		_, err := tx.ExecContext(ctx, `INSERT INTO done DEFAULT VALUES`)
		_, slow := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
		return 0, errors.Join(err, slow)
	})
	r.Start()
	eventually(t, 30*time.Second, "it is put off", func() bool {
		return db.Int(t, `SELECT count(*) FROM outbox.maintenance WHERE job = 'test' AND due_at > clock_timestamp()`) == 1
	})
	if n := db.Int(t, `SELECT count(*) FROM done`); n != 0 || called.Load() == 0 {
		t.Errorf("it was called %d times and left %d rows", called.Load(), n)
	}
	db.want(t, 1, "the relay's heartbeat suffers", `SELECT count(*) FROM outbox.relay WHERE alive_until > clock_timestamp() + interval '3 seconds'`)
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 10*time.Second)
}
