package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type sqlTx = sql.Tx

// seconds is the time that a run has by its context, to half a second.
func seconds(ctx context.Context) int {
	at, _ := ctx.Deadline()
	return int((time.Until(at) + 500*time.Millisecond).Seconds())
}

func TestEachTaskCanHaveATimeoutOfItsOwn(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		var mu sync.Mutex
		got := map[string]string{}
		note := func(taskType string, n int, text string) {
			mu.Lock()
			defer mu.Unlock()
			got[fmt.Sprint(taskType, n)] = text
		}
		settings := func(ctx context.Context, tx outbox.Tx) (text string) {
			if err := tx.QueryRowContext(ctx, `SELECT current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout')`).Scan(&text); err != nil {
				t.Error(err)
			}
			return text
		}
		reg := handlers.New()
		handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			note("TX", task.Payload.N, fmt.Sprint(seconds(ctx), " ", settings(ctx, tx)))
			return nil
		}, handlers.Timeout(10*time.Second))
		handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			for _, task := range tasks {
				note("BATCH", task.Payload.N, fmt.Sprint(len(tasks), ": ", seconds(ctx), " ", settings(ctx, tx)))
			}
			return nil
		}, handlers.Timeout(10*time.Second))
		handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
			note("LEASED", task.Payload.N, fmt.Sprint(seconds(ctx), " ", db.Text(t, `SELECT round(extract(epoch FROM leased_until - attempted_at)) FROM outbox.task WHERE task_id = $1`, task.ID)))
			return nil
		}, handlers.Timeout(10*time.Second))
		own := outbox.NewTaskType[payload]("NO_HEARTBEAT")
		handlers.Leased(reg, own, func(ctx context.Context, task *outbox.Task[payload]) error {
			note("OWN", task.Payload.N, fmt.Sprint(seconds(ctx), " ", db.Text(t, `SELECT round(extract(epoch FROM leased_until - attempted_at)) FROM outbox.task WHERE task_id = $1`, task.ID)))
			return nil
		}, handlers.NoHeartbeat(10*time.Second))
		err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			var all []outbox.NewTask
			for i, d := range []time.Duration{0, 2 * time.Second, time.Hour} {
				for _, typ := range []outbox.TaskType[payload]{typeTx, typeBatch, typeLeased, own} {
					all = append(all, typ.New(payload{N: i}, outbox.Timeout(d)))
				}
			}
			_, err := outbox.EnqueueMany(t.Context(), tx, all)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		once(t, db, reg, relay.Config{})
		for name, want := range map[string]string{
			"TX0": "11 10s 25750ms", "TX1": "2 2s 17350ms", "TX2": "32 30s 46750ms",
			"BATCH0": "3: 32 30s 46750ms", "BATCH1": "3: 32 30s 46750ms", "BATCH2": "3: 32 30s 46750ms",
			"LEASED0": "10 31", "LEASED1": "2 22", "LEASED2": "3600 3800",
			"OWN0": "10 10", "OWN1": "2 2", "OWN2": "3600 3600",
		} {
			if got[name] != want {
				t.Errorf("%s: got %q, want %q", name, got[name], want)
			}
		}
	})
}

// The columns of a task go with it through retries and into the dead letters.
func TestATasksTimeoutSurvivesRetriesAndDeath(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	opts := []handlers.Option{handlers.Backoff(constant(time.Millisecond)), handlers.MaxAttempts(2)}
	short := func(ctx context.Context) {
		if n := seconds(ctx); n > 3 {
			t.Errorf("the run has %d s, want its task's 2 s", n)
		}
	}
	handlers.Tx(reg, typeTx, func(ctx context.Context, _ *sql.Tx, _ *outbox.Task[payload]) error {
		short(ctx)
		return errAlways
	}, opts...)
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, _ outbox.Tx, _ []*outbox.Task[payload]) error {
		short(ctx)
		return errAlways
	}, opts...)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, _ *outbox.Task[payload]) error {
		short(ctx)
		return errAlways
	}, opts...)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, timeout_ms) SELECT unnest('{TX,BATCH,LEASED}'::text[]), '{}', 2000`)
	run(t, db, reg, fastPoll)
	eventually(t, 20*time.Second, "all are dead letters", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.dead_task`) == 3 })
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task WHERE timeout_ms = 2000 AND attempt = 2`); n != 3 {
		t.Errorf("%d dead letters have their timeout, want 3\n%s", n, db.Dump(t))
	}
}

func TestATasksOwnTimeoutEndsItsStatement(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(3600)`)
		return err
	}, handlers.Backoff(constant(time.Hour)))
	db.Do(t, `INSERT INTO outbox.task (task_type, timeout_ms) VALUES ('TX', 300)`)
	once(t, db, reg, relay.Config{})
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE attempt = 1 AND timeout_ms = 300 AND last_error LIKE '%statement timeout%'`); n != 1 {
		t.Errorf("the timeout is not on record\n%s", db.Dump(t))
	}
}
