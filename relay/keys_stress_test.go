package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type keySignal struct{ Key, Version int }

// F10: whatever the last committed Enqueue of a key came to, a run that started after it has seen what it wrote before, and the
// last payload that was stored has been run. No Enqueue meets a deadlock.
func TestNoSignalIsLost(t *testing.T) {
	t.Parallel()
	enqueuers, each, keys := 20, 60, 40
	if os.Getenv("OUTBOX_TEST_LONG") != "" {
		each, keys = 10_000, 1_000
	}
	db := newDatabase(t)
	db.SetMaxOpenConns(60)
	db.Do(t, `CREATE TABLE signal (task_type text, key int, version int NOT NULL DEFAULT 0, stored int NOT NULL DEFAULT 0, PRIMARY KEY (task_type, key)) WITH (fillfactor = 50)`)
	db.Do(t, `CREATE TABLE seen (task_type text, key int, payload int, version int)`)
	types := []string{"S_TX", "S_BATCH", "S_LEASED"}
	for _, name := range types {
		db.Do(t, `INSERT INTO signal (task_type, key) SELECT $1, n FROM generate_series(0, $2::int - 1) n`, name, keys)
	}
	see := func(ctx context.Context, q outbox.Querier, task *outbox.Task[keySignal]) error {
		_, err := q.ExecContext(ctx, `INSERT INTO seen SELECT task_type, key, $3, version FROM signal WHERE task_type = $1 AND key = $2`,
			task.Type, task.Payload.Key, task.Payload.Version)
		if err == nil && rand.IntN(20) == 0 {
			err = errors.New("by chance")
		}
		return err
	}
	registry := func() *handlers.Registry {
		reg := handlers.New()
		soon, most := handlers.Backoff(constant(time.Millisecond)), handlers.MaxAttempts(1000)
		handlers.Tx(reg, outbox.NewTaskType[keySignal](types[0]), func(ctx context.Context, tx *sql.Tx, task *outbox.Task[keySignal]) error { return see(ctx, tx, task) }, soon, most)
		handlers.Batch(reg, outbox.NewTaskType[keySignal](types[1]), 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[keySignal]) error {
			for _, task := range tasks {
				if err := see(ctx, tx, task); err != nil {
					return err
				}
			}
			return nil
		}, soon, most)
		handlers.Leased(reg, outbox.NewTaskType[keySignal](types[2]), func(ctx context.Context, task *outbox.Task[keySignal]) error {
			return task.Complete(ctx, func(tx *sql.Tx) error { return see(ctx, tx, task) })
		}, soon, most)
		return reg
	}
	for range 2 {
		run(t, db, registry(), relay.Config{Workers: 6, PollInterval: 100 * time.Millisecond})
	}

	options := []func() []outbox.Option{
		func() []outbox.Option { return nil },
		func() []outbox.Option { return []outbox.Option{outbox.OnConflictReplace()} },
		func() []outbox.Option { return []outbox.Option{outbox.OnConflictReschedule()} },
		func() []outbox.Option {
			return []outbox.Option{outbox.OnConflictReschedule(), outbox.After(time.Duration(rand.IntN(5)) * time.Millisecond)}
		},
		func() []outbox.Option {
			return []outbox.Option{outbox.OnConflictReplace(), outbox.After(time.Duration(rand.IntN(5)) * time.Millisecond)}
		},
	}
	one := func() error {
		s, taskType, how := keySignal{Key: rand.IntN(keys)}, types[rand.IntN(len(types))], rand.IntN(len(options))
		return outbox.InTx(context.Background(), db.DB, func(tx *sql.Tx) error {
			ctx := context.Background()
			err := tx.QueryRowContext(ctx, `UPDATE signal SET version = version + 1 WHERE task_type = $1 AND key = $2 RETURNING version`, taskType, s.Key).Scan(&s.Version)
			if err != nil {
				return err
			}
			got, err := outbox.Enqueue(ctx, tx, taskType, s, append(options[how](), outbox.Unique(fmt.Sprint(s.Key)))...)
			if err == nil && (got.Outcome == outbox.Created || how%3 == 1 && got.Outcome == outbox.Updated) {
				_, err = tx.ExecContext(ctx, `UPDATE signal SET stored = version WHERE task_type = $1 AND key = $2`, taskType, s.Key)
			}
			return err
		})
	}
	var all sync.WaitGroup
	for range enqueuers {
		all.Go(func() {
			for range each {
				if err := one(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	db.Emptied(t, time.Minute)
	if n := db.Int(t, `SELECT count(*) FROM signal s WHERE version > 0 AND NOT EXISTS (SELECT FROM seen r WHERE r.task_type = s.task_type AND r.key = s.key AND r.version = s.version)`); n > 0 {
		t.Errorf("%d keys have a last enqueue that no run started after", n)
	}
	if n := db.Int(t, `SELECT count(*) FROM signal s WHERE version > 0 AND NOT EXISTS (SELECT FROM seen r WHERE r.task_type = s.task_type AND r.key = s.key AND r.payload = s.stored)`); n > 0 {
		t.Errorf("%d keys have a last payload that no run got", n)
	}
	if n := db.Int(t, `SELECT sum(version) FROM signal`); n != enqueuers*each {
		t.Errorf("got %d enqueues, want %d", n, enqueuers*each)
	}
	t.Logf("%d enqueues made %d runs", enqueuers*each, db.Int(t, `SELECT count(*) FROM seen`))
}
