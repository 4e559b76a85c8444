package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/deadletter"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// medley has handlers of each kind end in every way, and sees that no two tasks of an ordering key run at once.
type medley struct {
	t      *testing.T
	mu     sync.Mutex
	inKey  map[string]int64
	healed atomic.Bool
}

func (m *medley) result(task *outbox.Task[payload]) error {
	if key := task.Type + " " + task.OrderingKey; task.OrderingKey != "" {
		m.mu.Lock()
		if other, taken := m.inKey[key]; taken {
			m.t.Errorf("task %d runs beside %d of %s", task.ID, other, key)
		}
		m.inKey[key] = task.ID
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.inKey, key)
		}()
	}
	pause := time.NewTimer(rand.N(3 * time.Millisecond))
	defer pause.Stop()
	<-pause.C
	if m.healed.Load() {
		return nil
	}
	switch rand.IntN(16) {
	case 0, 1:
		return errAlways
	case 2:
		return handlers.Dead(errAlways)
	case 3:
		return handlers.Snooze(rand.N(10 * time.Millisecond))
	case 4:
		return handlers.RunAgain(rand.N(10 * time.Millisecond))
	case 5:
		return handlers.RunAgainWith(task, 0, payload{N: task.Payload.N + 1})
	case 6:
		return handlers.Discard(errAlways)
	case 7:
		panic("medley")
	}
	return nil
}

func (m *medley) registry() *handlers.Registry {
	reg := handlers.New()
	opts := []handlers.Option{handlers.MaxAttempts(3), handlers.Backoff(constant(5 * time.Millisecond)), handlers.Keep(time.Hour), handlers.MaxRunningTotal(5)}
	handlers.Tx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error { return m.result(task) }, opts...)
	handlers.Batch(reg, typeBatch, 5, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error {
		failed := handlers.BatchError{}
		for _, task := range tasks {
			err := m.result(task)
			if err != nil && rand.IntN(4) == 0 {
				return err
			} else if err != nil {
				failed[task.ID] = err
			}
		}
		if len(failed) == 0 {
			return nil
		}
		return failed
	}, opts...)
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		if rand.IntN(2) == 0 {
			return m.result(task)
		}
		return task.Complete(ctx, func(*sql.Tx) error { return m.result(task) })
	}, opts...)
	return reg
}

func (m *medley) options() (opts []outbox.Option) {
	if rand.IntN(3) > 0 {
		opts = append(opts, outbox.OrderedBy(fmt.Sprint(rand.IntN(6))))
		if rand.IntN(4) == 0 {
			opts = append(opts, outbox.SkipFailed())
		}
	}
	key := fmt.Sprint(rand.IntN(10))
	switch rand.IntN(4) {
	case 0:
		opts = append(opts, outbox.Unique(key), outbox.OnConflictReplace())
	case 1:
		opts = append(opts, outbox.UniqueUntilDone(key), outbox.OnConflictReschedule())
	case 2:
		opts = append(opts, outbox.UniquePayload())
	}
	return append(opts, outbox.After(rand.N(20*time.Millisecond)), outbox.Timeout(5*time.Second), outbox.Priority(rand.IntN(3)))
}

// All at once: unique and ordering keys, every result, cancellations and redrives. Nothing deadlocks, no key gets stuck, the
// counts are those of the rows (at the end of the test), and what finished is in the history.
func TestAllFeaturesAtOnce(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	m := &medley{t: t, inKey: map[string]int64{}}
	var relays []*running
	for range 2 {
		relays = append(relays, run(t, open(t, db.URL), m.registry(), relay.Config{Workers: 6, PollInterval: 50 * time.Millisecond}))
	}
	until := time.Now().Add(4 * time.Second)
	var all sync.WaitGroup
	var last atomic.Int64
	loop := func(f func() error) {
		all.Go(func() {
			for time.Now().Before(until) && !t.Failed() {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		loop(func() error {
			var tasks []outbox.NewTask
			for range 1 + rand.IntN(4) {
				tasks = append(tasks, outbox.NewTask{Type: []string{"TX", "BATCH", "LEASED"}[rand.IntN(3)], Payload: payload{N: rand.IntN(20)}, Options: m.options()})
			}
			return outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
				got, err := outbox.EnqueueMany(t.Context(), tx, tasks)
				if err == nil {
					last.Store(got[0].TaskID)
				}
				return err
			})
		})
	}
	loop(func() error {
		return outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
			_, err := outbox.Cancel(t.Context(), tx, max(1, last.Load()-rand.Int64N(30)))
			return err
		})
	})
	loop(func() error {
		_, err := deadletter.RedriveMany(t.Context(), db.DB, deadletter.Filter{OlderThan: 20 * time.Millisecond}, 0)
		return err
	})
	all.Wait()
	m.healed.Store(true)
	eventually(t, 40*time.Second, "all is done", func() bool {
		if _, err := deadletter.RedriveMany(t.Context(), db.DB, deadletter.Filter{}, 0); err != nil {
			t.Fatal(err)
		}
		return db.Int(t, `SELECT (SELECT count(*) FROM outbox.task) + (SELECT count(*) FROM outbox.dead_task)`) == 0
	})
	stats, err := outbox.Stats(t.Context(), db.DB)
	if err != nil {
		t.Fatal(err)
	}
	finished, kept := int64(0), int64(db.Int(t, `SELECT count(*) FROM outbox.done_task`))
	for _, s := range stats {
		finished += s.Finished
	}
	if finished != kept || kept == 0 {
		t.Errorf("%d tasks are counted as finished, %d are in the history", finished, kept)
	}
	for _, r := range relays {
		r.Stop()
		for _, bad := range []string{"duplicate key", "deadlock", "23505", "40P01", "please report", "only in this record"} {
			if strings.Contains(r.Log.String(), bad) {
				t.Errorf("a relay's log has %q", bad)
			}
		}
	}
}
