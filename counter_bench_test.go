package outbox_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// withoutCounts is the outbox with all that it does but to count.
const withoutCounts = `
DROP TRIGGER task_wake ON outbox.task; DROP TRIGGER task_removed ON outbox.task; DROP TRIGGER task_changed ON outbox.task;
CREATE OR REPLACE FUNCTION outbox.task_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM added
    WHERE CASE WHEN state IN ('ready', 'scheduled') AND attempt >= 0
     AND num_nonnulls(lease_token, leased_until, max_attempts, headers, attempted_at) = 0
     AND octet_length(task_type) <= 128 AND task_type ~ '^[^[:cntrl:]]+$'
     AND least(run_at, created_at) > '-infinity' AND greatest(run_at, created_at) < '10000-01-01 00:00:00+00'
         THEN false ELSE NOT outbox.check_task(task_id) END;
  IF clock_timestamp() < to_timestamp(pg_sequence_last_value('outbox.wake'::regclass)) THEN
    PERFORM pg_notify(TG_TABLE_SCHEMA, '');
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER task_wake AFTER INSERT ON outbox.task REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION outbox.task_wake()`

// BenchmarkCounts prints what counting adds, in percent of the medians of rounds that alternate between a database that counts
// and one that does not: go test . -run '^$' -bench Counts -benchtime 20x
func BenchmarkCounts(b *testing.B) {
	ctx := context.Background()
	conns := [2]*sql.Conn{}
	for i, change := range []string{withoutCounts, `SELECT 1`} {
		db, err := sql.Open("postgres", pgtest.Database(b))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		if err := schema.Migrate(ctx, db); err != nil {
			b.Fatal(err)
		}
		if _, err := db.Exec(change); err != nil {
			b.Fatal(err)
		}
		if conns[i], err = db.Conn(ctx); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
	}
	inTx := func(conn *sql.Conn, f func(tx *sql.Tx) error) {
		tx, err := conn.BeginTx(ctx, nil)
		if err == nil {
			if err = f(tx); err == nil {
				err = tx.Commit()
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	many := make([]outbox.NewTask, 1000)
	for i := range many {
		many[i] = SendWelcome.New(Welcome{UserID: int64(i)})
	}
	for _, c := range []struct {
		name string
		n    int
		once func(tx *sql.Tx) error
	}{
		{"single", 200, func(tx *sql.Tx) error {
			_, err := SendWelcome.Enqueue(ctx, tx, Welcome{UserID: 1})
			return err
		}},
		{"bulk1000", 3, func(tx *sql.Tx) error {
			_, err := outbox.EnqueueMany(ctx, tx, many)
			return err
		}},
		{"claim", 200, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `WITH c AS MATERIALIZED (
  SELECT task_id FROM outbox.task WHERE state = 'ready' AND task_type = $1
   ORDER BY priority, attempt, task_id LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM outbox.task t WHERE t.task_id = ANY (ARRAY(SELECT task_id FROM c)) RETURNING task_id, payload`, "SEND_WELCOME", 1)
			return err
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for _, conn := range conns { // not after each round: plans would be made anew
				if _, err := conn.ExecContext(ctx, `TRUNCATE outbox.task`); err != nil {
					b.Fatal(err)
				}
				if c.name != "claim" {
					inTx(conn, c.once)
				}
			}
			var took [2][]float64
			for round := 0; b.Loop(); round++ {
				for i := range conns {
					conn := conns[(i+round)%2]
					if c.name == "claim" {
						inTx(conn, func(tx *sql.Tx) error { _, err := outbox.EnqueueMany(ctx, tx, many[:c.n]); return err })
					}
					began := time.Now()
					for range c.n {
						inTx(conn, c.once)
					}
					took[(i+round)%2] = append(took[(i+round)%2], float64(time.Since(began).Microseconds())/float64(c.n))
				}
			}
			without, with := median(took[0]), median(took[1])
			b.ReportMetric(without, "µs-without")
			b.ReportMetric(with, "µs-with")
			b.ReportMetric((with/without-1)*100, "%more")
			b.ReportMetric((slices.Min(took[1])/slices.Min(took[0])-1)*100, "%more-fastest")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}
