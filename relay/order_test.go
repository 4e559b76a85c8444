package relay_test

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// key is the place of a task in its lane.
func key(a, b outbox.Task[payload]) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.ID, b.ID))
}

// One worker claims priority first, then fewer attempts, then in the order of enqueueing. A Batch
// handler gets each batch in that order.
func TestALaneIsClaimedByPriorityThenAttemptsThenID(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, priority, attempt) SELECT $1, (n * 7) % 5 - 2, (n * 11) % 3 FROM generate_series(1, 300) n`, kind)
			s := begun(t, db, kind, 300, relay.Config{Workers: 1})
			if !slices.IsSortedFunc(s.tasks, key) {
				t.Errorf("tasks were claimed in another order: %v", s.tasks)
			}
		})
	}
}

// Design: no priority starves another.
func TestAnEndlessUrgentTypeDoesNotStarveAnother(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	urgent := outbox.NewTaskType[payload]("URGENT")
	registerTx(reg, urgent, func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		_, err := urgent.Enqueue(ctx, tx, payload{}) // there is always another one
		return err
	}, handlers.Priority(-1000))
	other := newProbe(reg, "OTHER")
	r := run(t, db, reg, relay.Config{Workers: 2})
	db.Enqueue(t, "URGENT", 20)
	for range 10 {
		other.measure(t, db, 1, time.Millisecond)
	}
	r.Stop()
	db.Do(t, `TRUNCATE outbox.task`)
}
